"""Rows of several LoRA adapters in one pass: as right as a pass for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes.engine.loading import load_runner
from runtimes.llamacpp.runner import LlamaRunner
from runtimes.models.registry import read_model
from runtimes.runner import StepRow
from runtimes.settings import RunnerSettings
from tests.adapters import write_adapter

ROLES = {"self_attn.q_proj": "attn_q", "self_attn.v_proj": "attn_v", "mlp.up_proj": "ffn_up"}
# By slot: those of one adapter apart and side by side, and more of them than are multiplied at once
ROWS = ["poet", None, "wide", "poet", "law", None, "wide", "wide", "wide", "wide", "wide", "poet"]


@pytest.fixture(scope="module")
def files(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of different ranks, each for other matrices."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "poet": write_adapter(pebble, folder / "poet.gguf", 1),
        "law": write_adapter(pebble, folder / "law.gguf", 2, ROLES, rank=1),
        "wide": write_adapter(pebble, folder / "wide.gguf", 3, ROLES, rank=21),
    }


def _loaded(path: Path, files: dict[str, Path], *, unified: bool = False) -> LlamaRunner:
    settings = RunnerSettings(slots=len(ROWS), context=64, threads=2, unified_kv=unified)
    runner = load_runner(read_model(path), settings)
    assert isinstance(runner, LlamaRunner)
    assert runner.adapters is not None
    for name, file in files.items():
        runner.adapters.load(name, file)
    return runner


def _logits(runner: LlamaRunner, adapters: list[str | None]) -> Any:
    """Those of three steps, [3, rows, vocabulary], after prompts of unequal lengths."""
    found = []
    for slot in range(len(adapters)):
        runner.kv.trim(slot, 0)
    for step in range(3):
        rows = []
        for slot, name in enumerate(adapters):
            tokens = [11 + (slot * 37 + i) % 900 for i in range(3 + slot % 4)]
            position = len(tokens) + step - 1 if step else 0
            rows.append(StepRow(slot, position, [5 + step] if step else tokens, 1, 0, name))
        found.append(np.array(runner.execute(rows)))
    return np.stack(found)


@pytest.mark.parametrize("unified", [False, True])
def test_each_row_has_its_own(
    pebble_f16: Path, files: dict[str, Path], unified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = _loaded(pebble_f16, files, unified=unified)
    adapters, calls, decode = runner.adapters, [], runner._decode
    assert adapters is not None
    if not adapters.stacks:
        pytest.skip("llama.cpp has been built without our kernel")
    monkeypatch.setattr(runner, "_decode", lambda: (calls.append(1), decode()))
    together = _logits(runner, ROWS)
    assert len(calls) == (3 if unified else len(ROWS) + 2)
    stack, adapters._stack = adapters._stack, None
    adapters._apply(None)
    apart, without = _logits(runner, ROWS), _logits(runner, [None] * len(ROWS))
    adapters._stack = stack
    runner.close()
    effect, wrong = (np.abs(one - apart).max(axis=(0, 2)) for one in (without, together))
    assert [by > 1 for by in effect] == [name is not None for name in ROWS]
    assert wrong.max() < 0.1


def test_stacked_anew_and_not_at_all(pebble_f16: Path, files: dict[str, Path]) -> None:
    """Where there is no stack, each adapter has passes of its own."""
    runner = _loaded(pebble_f16, files)
    adapters = runner.adapters
    assert adapters is not None
    together = _logits(runner, ROWS)
    adapters.unload("law")
    assert adapters.names == {"poet", "wide"}
    adapters.load("law", files["law"])
    assert np.abs(_logits(runner, ROWS) - together).max() < 1e-3
    adapters.stacks = False
    adapters._unstack()
    assert np.abs(_logits(runner, ROWS) - together).max() < 0.1
    runner.close()
