"""The two kernels of attention: which one runs, and that both say the same; ours against the
definition.
"""

from __future__ import annotations

import ctypes
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
from runtimes.machine.hardware import detect
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.runner import StepRow
from runtimes.settings import FlashAttention, RunnerSettings
from tests.runtimes.llamacpp.ggml import Floats, Ggml, Given

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


_F32, _F16, _BF16 = 0, 1, 30  # enum ggml_type


def _stored(kind: int, numbers: Floats) -> tuple[bytes, Floats]:
    """``numbers`` as a cache of this type holds them, and what they are then."""
    if kind == _F32:
        return numbers.tobytes(), numbers
    if kind == _F16:
        halves = numbers.astype(np.float16)
        return halves.tobytes(), halves.astype(np.float32)
    bits = (numbers.view(np.uint32) + 0x8000) & 0xFFFF0000
    return (bits >> 16).astype(np.uint16).tobytes(), bits.view(np.float32)


def _defined(q: Floats, k: Floats, v: Floats, mask: Floats, scale: float, cap: float) -> Floats:
    """softmax(q k^T scale + mask) v in double precision, of [token, head, width]."""
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(one, group, axis=1).astype(np.float64) for one in (k, v))
    scores = np.einsum("thd,nhd->htn", q, keys) * scale
    if cap:
        scores = cap * np.tanh(scores / cap)
    scores = scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("htn,nhd->thd", weights, values).astype(np.float32)


def _computed(
    kind: int, q: Floats, k: bytes, v: bytes, mask: Floats, shared: int, cap: float
) -> Floats:
    """What our kernel makes of queries and of a cache of ``shared`` heads."""
    if not {"avx2", "neon"} & {one.lower() for one in detect().instruction_sets}:
        pytest.skip("our kernel is not compiled for this processor")
    ggml = Ggml()
    width, positions = q.shape[2], mask.shape[1]

    def attention(context: Any, *given: Any) -> Any:
        turned = [ggml.permute(context, one, 0, 2, 1, 3) for one in given[:3]]
        floats = (ctypes.c_float(one) for one in (width**-0.5, 0.0, cap))
        return ggml.flash_attn_ext(context, *turned, given[3], *floats)

    cache = (Given(kind, (positions, shared, width), one) for one in (k, v))
    hidden = Given(_F16, mask.shape, mask.astype(np.float16).tobytes())
    return ggml.compute(attention, q.shape, Given(_F32, q.shape, q.tobytes()), *cache, hidden)


@pytest.mark.parametrize("kind", [_F32, _F16, _BF16])
@pytest.mark.parametrize("cap", [0.0, 20.0])
@pytest.mark.parametrize(
    ("tokens", "positions", "heads", "shared", "width"),
    [(1, 1, 4, 4, 64), (1, 700, 14, 2, 64), (3, 65, 6, 3, 96), (5, 129, 8, 1, 256),
     (40, 300, 9, 3, 64), (150, 1100, 14, 2, 128)],
)  # fmt: skip
def test_our_kernel_against_the_definition(
    kind: int, cap: float, tokens: int, positions: int, heads: int, shared: int, width: int
) -> None:
    dice = np.random.default_rng(positions)
    q = dice.normal(size=(tokens, heads, width)).astype(np.float32)
    k, v = (dice.normal(size=(positions, shared, width)).astype(np.float32) for _ in range(2))
    k[::17] *= 3
    (k_bytes, k), (v_bytes, v) = _stored(kind, k), _stored(kind, v)
    # Each token sees those before it, and nothing of a stretch that is another conversation's.
    at, seen = np.arange(positions), positions - tokens + 1 + np.arange(tokens)
    hidden = (at >= seen[:, None]) | ((at > 20) & (at < positions // 3))
    mask = np.where(hidden, -np.inf, 0).astype(np.float32)
    found = _computed(kind, q, k_bytes, v_bytes, mask, shared, cap)
    exact = _defined(q, k, v, mask, width**-0.5, cap)
    off = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert off < (8e-3 if kind == _BF16 else 2e-6)


@pytest.mark.parametrize("kind", [_F32, _F16, _BF16])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_no_number_is_not_left_out(kind: int, value: float) -> None:
    q, k = np.ones((3, 2, 64), np.float32), np.ones((200, 2, 64), np.float32)
    k[150] = value
    mask = np.zeros((3, 200), np.float32)
    (of_k, _), (of_v, _) = _stored(kind, k), _stored(kind, np.ones_like(k))
    found = _computed(kind, q, of_k, of_v, mask, 2, 0.0)
    assert np.isnan(found).all()
