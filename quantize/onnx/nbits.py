"""Runs in a child process: 4-bit and 8-bit weights by onnxruntime's own quantizer."""

from __future__ import annotations

from typing import Any

# The block size and the accuracy level (activations in 8 bits) of onnxruntime-genai's builder for
# processors: the fastest kernels.
_BLOCK = 32
_ACCURACY = 4


def quantize_nbits(model: Any, precision: str, method: str, in_8_bits: list[str]) -> Any:
    """The onnx_ir ``model`` with its multiplications by constants rounded, as a new one.

    ``precision`` is "int4" or "int8". With "int4", ``method`` is "rtn" or "k_quant" (or empty, for
    onnxruntime's default) and the nodes named ``in_8_bits`` get 8 bits.
    """
    import onnx_ir as ir
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        KQuantWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
        RTNWeightOnlyQuantConfig,
    )

    ir.external_data.load_to_model(model)
    settings = {"block_size": _BLOCK, "is_symmetric": True, "accuracy_level": _ACCURACY}
    algorithm = None
    if precision == "int4":
        chosen = {name: {"bits": 8} for name in in_8_bits}
        kinds = {"rtn": RTNWeightOnlyQuantConfig, "k_quant": KQuantWeightOnlyQuantConfig}
        if method in kinds:
            algorithm = kinds[method](customized_weight_config=chosen)
    bits = {"int4": 4, "int8": 8}[precision]
    proto = ir.to_proto(model)
    quantizer = MatMulNBitsQuantizer(proto, bits=bits, algo_config=algorithm, **settings)
    quantizer.process()
    return ir.from_proto(quantizer.model.model)
