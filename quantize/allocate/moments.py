"""Second moments of what goes into the matrices of a model's layers, a layer at a time. Runs in a
child process.

For inputs x of a matrix they are the mean of x x'. By them a rounded weight's error is made up for
by the weights that are still to be rounded (`quantize.gptq`).
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantize.allocate.measure import read_calibration
from quantize.allocate.sweep import Args, Named, Reached, inputs_of, layers_of, single
from quantize.arrays import Floats
from quantize.children import report_progress
from quantize.errors import SourceError, UsageError
from quantize.gptq import NORMS
from quantize.quality.float_child import context_of, encode, load_network
from quantize.quality.text import WINDOW
from quantize.source import SourceModel
from quantize.source.shapes import gguf_name, shapes_of

_WINDOWS = 64  # of text, at most
_SAME = 1e-2  # of the largest: layers one by one give what they give together, but for rounding
_INPUTS = "attn_q attn_qkv attn_output ffn_up ffn_down".split()  # tensors whose inputs differ


def moments_bytes(source: SourceModel) -> tuple[int, int]:
    """Bytes that all of them take on the disk, and those of a layer in memory."""
    shapes = shapes_of(source)
    inputs = (s[0] for name, s in shapes.weights.items() if f".{name}".split(".")[-2] in _INPUTS)
    whole = 4 * sum(width**2 for width in inputs)
    return whole, whole // max(shapes.layers, 1)


def write_moments(source: SourceModel, text: Path, folder: Path) -> None:
    """Write ``folder``, in which NAME.npy has the moments, float32 [inputs, inputs], of the tensor
    of that name in GGUF, over the ``text``; queries, keys and values are one tensor, too. `NORMS`
    has the lengths of each tensor's columns, which tell them from others.

    Raises SourceError for a network that is no stack of layers, UsageError for a short text.
    """
    import torch

    network = load_network(source, wide=False)
    windows = _windows(source, text, network.config)
    folder.mkdir()
    norms: dict[str, Any] = {}
    with torch.inference_mode():
        layers = layers_of(network)
        calls, *ends = _calls(network, layers, windows[0])
        ends += _calls(network, layers, windows[-1])[1:]
        states = [_embedded(network, layers[0], window) for window in windows]
        for at, layer in enumerate(layers):
            report_progress(at, len(layers), "layers")
            rest, named = calls[at]
            with single(layer.parameters()), contextlib.ExitStack() as hooks:
                sums = _Sums(hooks, layer)
                for w, hidden in enumerate(states):
                    output = layer(hidden, *rest, **named)
                    states[w] = output[0] if isinstance(output, tuple) else output
                    sums.seen.clear()
                norms |= sums.save(folder, at)
        for state, end in zip((states[0], states[-1]), ends, strict=True):
            if not torch.allclose(state, end, rtol=_SAME, atol=_SAME * float(end.abs().max())):
                raise SourceError(
                    f"the layers of {type(network).__name__} cannot be run one by one, as each"
                    " needs more than the one before gives: build without --gptq"
                )
    np.savez(folder / NORMS, **norms)
    report_progress(len(layers), len(layers), "layers")


def _windows(source: SourceModel, text: Path, config: Any) -> list[list[int]]:
    """Pieces of the text's ids, all of one length."""
    ids, bos = encode(source, read_calibration(text))
    length = min(WINDOW, context_of(config))
    starts = [*range(0, len(ids) - length + 1, length)][:_WINDOWS]
    if not starts:
        raise UsageError(
            f"{text} has {len(ids)} tokens, too few for --gptq: give a longer text with --imatrix"
        )
    first = [] if bos is None else [bos]
    return [[*first, *ids[at + len(first) : at + length]] for at in starts]


def _calls(
    network: Any, layers: Any, window: Sequence[int]
) -> tuple[list[tuple[Args, Named]], Any]:
    """How each layer is called, beside the hidden states, and what the last one gives."""
    import torch

    found: list[tuple[Args, Named]] = []
    ends: list[Any] = []

    def note(_module: Any, args: Args, kwargs: Named) -> None:
        found.append(inputs_of(args, kwargs)[1:])

    with contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(note, with_kwargs=True).remove)
        last = layers[-1].register_forward_hook(lambda _m, _i, output: ends.append(output))
        hooks.callback(last.remove)
        network(torch.tensor([window]), use_cache=False)
    return found, ends[0][0] if isinstance(ends[0], tuple) else ends[0]


def _embedded(network: Any, first: Any, window: Sequence[int]) -> Any:
    """Hidden states that the ``first`` layer is called with."""
    import torch

    def stop(_module: Any, args: Args, kwargs: Named) -> None:
        raise Reached(inputs_of(args, kwargs)[0])

    hook = first.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        network(torch.tensor([window]), use_cache=False)
    except Reached as reached:
        return reached.args[0]
    finally:
        hook.remove()


def _tensor(at: int, name: str) -> str:
    """Name in GGUF of the weight of a module of layer ``at``."""
    return gguf_name(f"model.layers.{at}.{name}.weight")


class _Sums:
    """Sums of x x' of the linear modules of a ``layer``, one for all that have the same inputs.
    ``seen`` has the inputs of a pass, and who had them first."""

    def __init__(self, hooks: contextlib.ExitStack, layer: Any) -> None:
        import torch

        self.seen: list[tuple[Any, str]] = []
        self._sums: dict[str, Any] = {}
        self._owners: dict[str, str] = {}
        self._rows: dict[str, int] = {}
        self._modules: dict[str, Any] = {}
        for name, module in layer.named_modules():
            if isinstance(module, torch.nn.Linear) and "_exps." not in _tensor(0, name):
                self._modules[name] = module
                hook = module.register_forward_pre_hook(
                    lambda _m, args, name=name: self._add(name, args[0])
                )
                hooks.callback(hook.remove)

    def _add(self, name: str, inputs: Any) -> None:
        owner = next((owner for tensor, owner in self.seen if tensor is inputs), name)
        self._owners[name] = owner
        if owner == name:
            self.seen.append((inputs, name))
            rows = inputs.flatten(0, -2)
            self._sums[name] = self._sums.get(name, 0) + rows.T @ rows
            self._rows[name] = self._rows.get(name, 0) + len(rows)

    def save(self, folder: Path, at: int) -> dict[str, Floats]:
        """Write those of layer ``at``; experts, who see a part of the text each, have none. Returns
        the lengths of the columns of each tensor."""
        import torch

        paths: dict[str, Path] = {}
        norms: dict[str, Floats] = {}
        for name, owner in self._owners.items():
            tensor = _tensor(at, name)
            if tensor in norms or not torch.isfinite(self._sums[owner]).all():
                continue  # the same name twice, or activations beyond single precision
            norms[tensor] = self._modules[name].weight.norm(dim=0).numpy()
            for one in dict.fromkeys((tensor, tensor.replace(".attn_q.", ".attn_qkv."))):
                path = folder / f"{one}.npy"
                if owner in paths:
                    os.link(paths[owner], path)
                else:
                    np.save(path, self._sums[owner].float().numpy() / self._rows[owner])
                    paths[owner] = path
        return norms
