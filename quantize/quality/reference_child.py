"""Runs in a child process: the float model's distributions over a text, written to disk."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from quantize.build.child import report_progress, report_step
from quantize.quality.store import Recorder
from quantize.quality.text import cut, read_text
from quantize.source import SourceModel


def from_checkpoint(source: SourceModel, out: Path, text: Path | None, limit: int | None) -> None:
    """Run the Hugging Face model ``source`` over the text; what it gives goes to the folder
    ``out``."""
    import torch

    from quantize.quality.float_model import describe_precision, encode, load_network

    given = read_text(text, limit)
    trust = source.trust_remote_code
    report_step("loading the tokenizer")
    ids, bos = encode(source.folder, given.content, trust_remote_code=trust)
    report_step("loading the float model")
    network = load_network(source.folder, trust_remote_code=trust)
    windows = cut(ids, _context(network.config), bos, limit)
    keeps = "logits_to_keep" in inspect.signature(network.forward).parameters
    with Recorder(out, windows, given) as recorder, torch.inference_mode():
        for done, window in enumerate(windows.ids):
            report_progress(done, len(windows.ids), "windows")
            kept = {"logits_to_keep": len(window) - windows.first} if keeps else {}
            logits = network(torch.tensor([window]), use_cache=False, **kept).logits[0]
            scored = logits[-(len(window) - windows.first) : -1]
            recorder.add(window, scored.float().numpy())
        recorder.finish(describe_precision(network))
    report_progress(len(windows.ids), len(windows.ids), "windows")


def from_gguf(path: Path, out: Path, text: Path | None, limit: int | None) -> None:
    """The same for a GGUF file of half or single precision, which is its own float model."""
    from quantize.quality.scoring import open_runner, scored_logits
    from runtimes.engine.tokenizer import load_tokenizer
    from runtimes.models.modelfile import ModelFile

    given = read_text(text, limit)
    model = ModelFile.read(path)
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(given.content, add_special=True, parse_special=False)
    windows = cut(ids, model.context_length, _bos(tokenizer, ids), limit)
    runner = open_runner(model, windows)
    with Recorder(out, windows, given) as recorder:
        for window, logits in scored_logits(runner, windows):
            recorder.add(window, logits)
        recorder.finish(model.quantization.lower())
    runner.close()


def _bos(tokenizer: Any, ids: list[int]) -> int | None:
    """The id that the tokenizer puts in front of every text, if it does."""
    alone = tokenizer.encode("", add_special=True)
    return int(alone[0]) if alone and ids and ids[0] == alone[0] else None


def _context(config: Any) -> int:
    """The longest window that a model was made for; many-part models keep it one level down."""
    inner = config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
    found = next((getattr(inner, name, None) for name in names if getattr(inner, name, None)), None)
    return int(found) if found else 2**31
