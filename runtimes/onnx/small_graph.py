"""ONNX graphs as bytes, made without onnx.

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from collections.abc import Iterable

from runtimes.onnx.wire import encode

FLOAT, INT32, INT64, FLOAT16 = 1, 6, 7, 10  # TensorProto.DataType
FLOATS = {2: FLOAT16, 4: FLOAT}  # by their bytes
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
_INT = 2  # AttributeProto.AttributeType
_IR_VERSION, _OPSET = 8, 17


def node(
    kind: str,
    inputs: tuple[str, ...],
    outputs: str | tuple[str, ...],
    attributes: bytes = b"",
    domain: str = "",
) -> bytes:
    """A NodeProto, named after its first output; an input that is not given is empty."""
    made = (outputs,) if isinstance(outputs, str) else outputs
    data = b"".join(encode(1, name) for name in inputs) + b"".join(encode(2, o) for o in made)
    data += encode(3, f"{made[0]}/{kind}") + encode(4, kind) + attributes
    return data + encode(7, domain) if domain else data


def integer(name: str, value: int) -> bytes:
    """A node's attribute."""
    return encode(5, encode(1, name) + encode(3, value) + encode(20, _INT))


def value_info(name: str, element: int, *shape: int | str) -> bytes:
    """An input or output; sizes that are texts are found out by a run."""
    sizes = b"".join(encode(1, encode(1 if isinstance(n, int) else 2, n)) for n in shape)
    return encode(1, name) + encode(2, encode(1, encode(1, element) + encode(2, sizes)))


def constant(name: str, element: int, count: int, data: bytes) -> bytes:
    """A vector of the graph."""
    return encode(1, count) + encode(2, element) + encode(8, name) + encode(9, data)


def model(
    nodes: Iterable[bytes],
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    constants: Iterable[bytes] = (),
) -> bytes:
    """A file's content."""
    graph = encode(2, "small")
    for number, parts in ((1, nodes), (5, constants), (11, inputs), (12, outputs)):
        graph += b"".join(encode(number, part) for part in parts)
    sets = (encode(2, _OPSET), encode(1, MICROSOFT) + encode(2, 1))
    return encode(1, _IR_VERSION) + encode(7, graph) + b"".join(encode(8, one) for one in sets)
