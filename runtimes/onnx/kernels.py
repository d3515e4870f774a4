"""What the installed ONNX Runtime can run on."""

from __future__ import annotations


def execution_providers() -> list[str]:
    """Names of the execution providers that this build of the library has."""
    import onnxruntime

    return list(onnxruntime.get_available_providers())
