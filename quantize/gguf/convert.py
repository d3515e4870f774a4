"""Hugging Face folder to a half-precision GGUF file whose tokens are the original's."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from quantize.build.process import Progress, run_child
from quantize.gguf.converter import converter_folder
from quantize.quality.tokens import Reference, compare_vocabulary
from runtimes.models.modelfile import ModelFile, read_json

logger = logging.getLogger(__name__)

# Pre-tokenizers to try for a byte-level vocabulary whose hash the converter does not know; between
# them they cover the regular expressions in use (GPT-2's, Llama 3's, Qwen 2's; `default` splits
# punctuation and single digits).
_CANDIDATES = ("gpt-2", "llama-bpe", "qwen2", "default")


def export_f16(
    model: Path, out: Path, reference: Reference, work: Path, progress: Progress | None = None
) -> list[str]:
    """Write ``model`` to the GGUF file ``out``; returns what the user should know.

    The converter recognises pre-tokenizers by a hash over published vocabularies. For a vocabulary
    that it does not know, the candidates are tried and the one whose tokens equal the original's
    is kept.
    """
    candidates = {name: work / f"vocabulary-{name}.gguf" for name in _CANDIDATES}
    chosen: list[Any] | None = run_child(
        "quantize.gguf.convert_child:convert",
        {
            "converter": str(converter_folder()),
            "model": str(model),
            "out": str(out),
            "outtype": "f16",
            "candidates": {name: str(path) for name, path in candidates.items()},
            "reference": dataclasses.asdict(reference),
        },
        what="converting to GGUF",
        work=work,
        progress=progress,
    )
    for path in candidates.values():
        path.unlink(missing_ok=True)
    if chosen is None:
        return _lost_window(model, out)
    name, different, compared = chosen
    return [
        f"pre-tokenizer {name!r} chosen by comparing tokens:"
        f" {different} of {compared} lines differ",
        *_lost_window(model, out),
    ]


def choose(candidates: dict[str, Path], reference: Reference) -> tuple[str, int, int]:
    """The pre-tokenizer of the vocabularies ``candidates`` that differs from the original on the
    fewest lines, on how many, and of how many; the first without any ends the search."""
    best: tuple[str, int, int] | None = None
    for name, path in candidates.items():
        comparison = compare_vocabulary(path, reference, path.parent)
        different = len(comparison.differences)
        logger.info("pre-tokenizer %s: %d lines differ", name, different)
        if best is None or different < best[1]:
            best = name, different, comparison.compared
        if not different:
            break
    assert best is not None
    return best


def _lost_window(model: Path, out: Path) -> list[str]:
    """A note where the original attends to a window only, and llama.cpp to everything (Mistral)."""
    config = read_json(model / "config.json")
    window = config.get("sliding_window")
    kinds = config.get("layer_types") or ["sliding_attention"]
    used = config.get("use_sliding_window", True) and "sliding_attention" in kinds
    if not (window and used) or config.get("max_position_embeddings", 0) <= window:
        return []
    if ModelFile.read(out).sliding_window:
        return []
    return [
        f"llama.cpp has no sliding window for this architecture: past {window:,} tokens the file"
        " attends to more than the original does, and continues texts in another way"
    ]
