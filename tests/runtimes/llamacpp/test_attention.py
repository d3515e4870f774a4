"""The two kernels of attention: which one runs, and that both say the same."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes.engine.loading import load_runner
from runtimes.errors import RequestError
from runtimes.llamacpp.context import with_attention
from runtimes.machine import selftest
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.runner import StepRow
from runtimes.settings import FlashAttention, RunnerSettings

SETTINGS = RunnerSettings(slots=3, context=512, threads=1)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the self-test have found that flash attention has a speed of ``ratio``."""
    sound = selftest.ensure("llamacpp")

    def find(ratio: float) -> None:
        health = replace(sound, attention=ratio)
        for name in ("ensure", "remembered"):
            monkeypatch.setattr(selftest, name, lambda *_, **__: health)
        monkeypatch.setattr("runtimes.llamacpp.memory.remembered", lambda _: health)

    return find


def logits(path: Path, kernel: FlashAttention, **settings: Any) -> Any:
    """Behind a prompt and a turn, and of three rows that decode behind them."""
    wanted = replace(SETTINGS, flash_attention=kernel, **settings)
    runner = load_runner(read_model(path), wanted)
    tokens = [(7919 * i + 11) % runner.capabilities.vocab_size for i in range(400)]
    pieces: list[tuple[StepRow, ...]] = [(StepRow(0, 0, tokens[:300], 1),)]
    pieces.append((StepRow(0, 300, tokens[300:340], 1),))
    said = [np.array(runner.execute(piece)) for piece in pieces]
    for slot in (1, 2):
        runner.kv.copy(0, slot, 340)
    rows = tuple(StepRow(slot, 340, (tokens[340 + slot],), 1) for slot in range(3))
    said.append(np.array(runner.execute(rows)))
    runner.close()
    return np.concatenate(said)


@pytest.mark.parametrize("unified", [False, True])
def test_both_kernels_say_the_same(gguf: Path, unified: bool) -> None:
    on, off = (logits(gguf, kernel, unified_kv=unified) for kernel in ("on", "off"))
    assert on.shape == off.shape == (5, on.shape[1])
    assert not np.array_equal(on, off)  # sums have another order
    assert np.abs(on - off).max() < 0.05 * np.abs(off).max()


def test_a_cache_of_bfloat16_says_nearly_the_same(gguf: Path) -> None:
    halves, wide = (logits(gguf, "on", kv_type=kind) for kind in ("bf16", "f16"))
    assert not np.array_equal(halves, wide)
    assert np.abs(halves - wide).max() < 0.05 * np.abs(wide).max()


def test_the_slower_kernel_is_not_taken(gguf: Path, found: Any) -> None:
    model = read_model(gguf)
    settings = RunnerSettings(slots=2, context=1024, batch=512)
    known = {kernel: replace(settings, flash_attention=kernel) for kernel in ("on", "off")}
    need = {kernel: estimate(model, one).total for kernel, one in known.items()}
    assert need["off"] > need["on"] + 2 * 512 * 1024  # scores, and their mask
    auto: list[np.ndarray[Any, Any]] = []
    for ratio, kernel in ((2.0, "on"), (0.5, "off")):
        found(ratio)
        assert estimate(model, settings).total == need[kernel]
        auto.append(logits(gguf, "auto"))
        assert np.array_equal(auto[-1], logits(gguf, kernel))  # type: ignore[arg-type]


def test_what_needs_flash_attention_says_what_it_costs(
    found: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found(0.5)
    with caplog.at_level(logging.WARNING, logger="runtimes.llamacpp.context"):
        assert with_attention(replace(SETTINGS, kv_type="q8_0")).flash_attention == "auto"
    assert "0.50 times the speed of the other kernel behind 2,048 tokens" in caplog.text


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"kv_type": "q8_0"}, "a q8_0 KV cache"), ({"reproducible": True}, "reproducible answers")],
)
def test_what_cannot_be_had_without_it(settings: dict[str, Any], why: str) -> None:
    wanted = replace(SETTINGS, flash_attention="off", **settings)
    with pytest.raises(RequestError, match=f"{why} cannot be had with flash attention off"):
        with_attention(wanted)
