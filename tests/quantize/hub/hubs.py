"""The fake hub with real models in it, and what a run says about them."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

from quantize.hub.client import Hub, Patience
from quantize.progress import Reporter

PATIENT = Hub(Patience(read_s=20.0, attempts=3, pause_s=0.01, wait_s=1.0))
HURRIED = Hub(Patience(read_s=0.6, attempts=2, pause_s=0.01, wait_s=1.0))
AT_ONCE = Hub(Patience(read_s=20.0, attempts=1, pause_s=0.01, wait_s=1.0))


class Notes(Reporter):
    """Keeps what is said, and every figure."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[str] = []
        self.moved: list[tuple[float, float | None, str]] = []
        self.steps: list[str] = []

    def stage(self, text: str) -> contextlib.AbstractContextManager[None]:
        self.stages.append(text)
        return contextlib.nullcontext()

    def advance(self, done: float, total: float | None, unit: str) -> None:
        self.moved.append((done, total, unit))

    def step(self, text: str) -> None:
        self.steps.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)


def small_model(pebble: Path, folder: Path) -> Path:
    """A whole source folder of 2.6 MB: Pebble's tokenizer, and random weights of one layer."""
    import numpy as np
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(pebble / name, folder / name)
    config = json.loads((pebble / "config.json").read_text())
    config |= {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 512}
    config |= {"num_hidden_layers": 1, "vocab_size": 1024}
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(7)
    shapes = {
        "model.embed_tokens.weight": (1024, 512),
        "model.layers.0.mlp.up_proj.weight": (256, 512),
    }
    tensors = {n: random.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """A folder's files as the hub is given them."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
