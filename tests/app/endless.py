"""Pebble with room for answers that take minutes: none ends before its test has done its part."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

CONTEXT = 32_768
# Whatever was said becomes likelier: a story goes on until the context is full. Only an answer of a
# few words ends before that.
SAMPLING = {"temperature": 0.0, "frequency_penalty": -2.0, "max_tokens": CONTEXT - 1024}
ENVIRONMENT = {
    "INGOT_CHAT_CONTEXT": str(CONTEXT),
    **{f"INGOT_SAMPLING_{name.upper()}": str(value) for name, value in SAMPLING.items()},
}


def lengthen(built: Path, out: Path) -> None:
    """Copy a folder of Pebble's files; in the copy their context has ``CONTEXT`` tokens."""
    shutil.copytree(built, out)
    for file in out.glob("*.gguf"):
        _lengthen_gguf(file)
    for folder in out.glob("onnx-*"):
        _lengthen_onnx(folder)
    manifest = out / "manifest.json"  # a file of another size than it says is taken for damaged
    said = json.loads(manifest.read_text())
    for one in said["files"]:
        path = out / one["path"]
        one["bytes"] = sum(p.stat().st_size for p in (path, *path.glob("*")) if p.is_file())
    manifest.write_text(json.dumps(said))


def _lengthen_gguf(file: Path) -> None:
    def entry(tokens: int) -> bytes:
        return b"llama.context_length" + struct.pack("<II", 4, tokens)  # a 32-bit number

    data = file.read_bytes()
    assert data.count(entry(1024)) == 1
    file.write_bytes(data.replace(entry(1024), entry(CONTEXT)))


def _lengthen_onnx(folder: Path) -> None:
    import numpy as np
    import onnx
    from onnx import numpy_helper

    config = folder / "genai_config.json"
    settings = json.loads(config.read_text())
    settings["model"]["context_length"] = CONTEXT
    config.write_text(json.dumps(settings))
    model = onnx.load(folder / "model.onnx")
    for tensor in model.graph.initializer:
        if tensor.name in ("cos_cache", "sin_cache"):
            wave = {"cos_cache": np.cos, "sin_cache": np.sin}[tensor.name]
            now = numpy_helper.to_array(tensor)
            half = now.shape[1]
            speeds = 10_000.0 ** -(np.arange(half) / half)
            table = wave(np.outer(np.arange(CONTEXT), speeds)).astype(now.dtype)
            np.testing.assert_allclose(table[: len(now)], now, atol=1e-3)
            tensor.CopyFrom(numpy_helper.from_array(table, tensor.name))
    (folder / "model.onnx.data").unlink()
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data")
