"""Runs in a child process: several models built in one go, so that imports are paid for once."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def gguf(models: dict[str, str], pre: dict[str, str], type: str = "q8_0") -> None:
    """Each Hugging Face folder (key) to a GGUF file (value), with weights of ``type``."""
    from quantize.gguf.convert_child import load_converter
    from quantize.gguf.converter import converter_folder

    for model, out in models.items():
        load_converter(str(converter_folder()), pre.get(model))(
            model, "--outfile", out, "--outtype", type
        )


def onnx(jobs: list[tuple[str, str, str, str]]) -> None:
    """Hugging Face folders to ONNX folders by onnxruntime-genai's builder.

    A job is the model, the output, the recipe and the target.
    """
    from quantize.onnx.build_child import build
    from quantize.recipes.recipe import RECIPES

    for model, out, name, target in jobs:
        recipe = RECIPES[name]
        cache = str(Path(out).with_name("cache"))
        options = dict(recipe.options)
        answer = build(model, out, cache, recipe.precision, target, options, False)
        assert "notes" in answer, answer


def originals(models: dict[str, str], tokens: list[int]) -> None:
    """Log-probabilities after each token by transformers, as .npy files."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    for model, out in models.items():
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        with torch.inference_mode():
            logits = loaded(torch.tensor([tokens])).logits[0].double()
        np.save(out, torch.log_softmax(logits, -1).numpy())


def make(
    root: str, shapes: dict[str, dict[str, Any]], tokens: list[int], scored: list[str]
) -> None:
    """Random models of ``shapes`` (the fields of a Shape by name) in the folder ``root``, as GGUF
    files in half precision too; transformers' log-probabilities of those that are ``scored``."""
    from quantize.source.synthetic import Shape, make_random_model

    folder = Path(root)
    for name, fields in shapes.items():
        make_random_model(folder / name, Shape(**fields))
    originals({str(folder / name): str(folder / f"{name}.npy") for name in scored}, tokens)
    models = {str(folder / name): str(folder / f"{name}.gguf") for name in shapes}
    gguf(models, dict.fromkeys(models, "gpt-2"), "f16")
