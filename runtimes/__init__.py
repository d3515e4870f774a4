"""Load a quantized model file, batch requests on it, stream tokens. No torch, no UI."""

PACKAGES = ("runtimes", "quantize", "app")
_PARENT = __name__.removesuffix("runtimes")


def own(module: str) -> str:
    """The name by which one of Ingot's modules is imported: where Ingot is installed, `app`,
    `quantize` and `runtimes` lie in the package `ingot`."""
    return _PARENT + module
