"""Runs in a child process: several models built in one go, so that imports are paid for once."""

from __future__ import annotations

from pathlib import Path

from quantize.options import Target
from quantize.source import SourceModel
from tests.quantize.shapes import Shape


def gguf(models: dict[Path, Path], pre: dict[Path, str], type: str = "q8_0") -> None:
    """Each Hugging Face folder (key) to a GGUF file (value), with weights of ``type``."""
    from quantize.gguf.converter import converter_folder, load_converter

    run = load_converter(converter_folder())
    for model, out in models.items():
        run(model, out, "--outtype", type, pre=pre.get(model))


def onnx(jobs: list[tuple[SourceModel, Path, str, Target]]) -> None:
    """Hugging Face folders to ONNX folders by onnxruntime-genai's builder.

    A job is the model, the output, the recipe and the target.
    """
    from quantize.onnx.builder import build_graph
    from quantize.recipes import RECIPES

    for model, out, name, target in jobs:
        assert build_graph(model, RECIPES[name], out, target) is not None


def originals(models: dict[Path, Path], tokens: list[int]) -> None:
    """Log-probabilities after each token by transformers, as .npy files."""
    import numpy as np

    from tests.quantize.logits import of_transformers

    for model, out in models.items():
        np.save(out, of_transformers(model, tokens))


def make(folder: Path, shapes: dict[str, Shape], tokens: list[int], scored: list[str]) -> None:
    """Random models of ``shapes`` (by name) in ``folder``, as GGUF
    files in half precision too; transformers' log-probabilities of those that are ``scored``."""
    from tests.quantize.shapes import make_random_model

    for name, shape in shapes.items():
        make_random_model(folder / name, shape)
    originals({folder / name: folder / f"{name}.npy" for name in scored}, tokens)
    models = {folder / name: folder / f"{name}.gguf" for name in shapes}
    gguf(models, dict.fromkeys(models, "gpt-2"), "f16")
