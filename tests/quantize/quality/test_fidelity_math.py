"""Windows, divergences, the store and the gates, on figures that can be worked out otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantize.errors import QualityError, SourceError, ToolError, UsageError
from quantize.manifest import Fidelity, Perplexity
from quantize.quality.fidelity import (
    compare,
    load_reference,
    mean,
    perplexity,
    record,
    reference_bytes,
    require_quality,
    shifted,
)
from quantize.quality.text import GradedQuestion, Text, cut, grade, read_questions, read_text
from quantize.recipes import Limits, find_recipe
from tests.quantize.logits import log_softmax

_TEXT = Text("a text", "", "0" * 64)


def some_logits(rows: int, vocab: int, seed: int, spread: float = 4.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, (rows, vocab)).astype(np.float32)


def test_windows_and_scored_positions_are_those_of_llama_perplexity():
    windows = cut(range(1300), context=2048, bos=7)
    # perplexity.cpp: n_chunk = tokens / n_ctx, first = n_ctx / 2, n_ctx - 1 - first scored each.
    assert [len(ids) for ids in windows.ids] == [512, 512]
    assert (windows.first, windows.scored) == (256, 2 * 255)
    assert windows.ids[1][:3] == (7, 513, 514)
    assert cut(range(1300), 2048, None).ids[1][0] == 512


def test_a_short_context_or_text_makes_shorter_windows():
    assert [len(ids) for ids in cut(range(300), 128, None).ids] == [128, 128]
    assert [len(ids) for ids in cut(range(100), 4096, None).ids] == [100]
    with pytest.raises(UsageError, match="20 tokens"):
        cut(range(20), 4096, None)


def test_of_long_windows_the_end_is_scored():
    windows = cut(range(9000), 8192, None, 1500, window=4096)
    assert [len(ids) for ids in windows.ids] == [4096, 3073 + 477]
    assert (windows.first, windows.scored) == (3072, 1500)
    assert windows.targets[0][0] == 3073
    assert cut(range(9000), 8192, None, 500, window=600).first == 300


@pytest.mark.parametrize("limit", [1, 255, 256, 400])
def test_a_limit_is_kept_to_the_token(limit: int):
    windows = cut(range(3000), 4096, None, limit)
    assert windows.scored == limit
    whole = cut(range(3000), 4096, None)
    assert all(b[: len(a)] == a for a, b in zip(windows.ids, whole.ids, strict=False))


def test_the_text_is_refused_with_a_reason(tmp_path: Path):
    with pytest.raises(UsageError, match="No such file"):
        read_text(tmp_path / "none.txt")
    bad = tmp_path / "latin.txt"
    bad.write_bytes("Größe".encode("latin-1"))
    with pytest.raises(UsageError, match=r"not UTF-8 text \(byte 2\)"):
        read_text(bad)


def test_divergence_is_that_of_the_definition():
    ours, theirs = some_logits(40, 3000, 1), some_logits(40, 3000, 2)
    targets = np.arange(40) * 31
    scores = compare(shifted(ours), ours.argmax(axis=1), theirs, targets)
    p, q = log_softmax(ours), log_softmax(theirs)
    # Half precision of the base moves a probability by a factor of 2^-11 |log p| at most.
    np.testing.assert_allclose(scores.kl, (np.exp(p) * (p - q)).sum(axis=1), rtol=1e-3)
    np.testing.assert_allclose(scores.nll, -q[np.arange(40), targets], atol=1e-5)
    assert scores.same.tolist() == (ours.argmax(axis=1) == theirs.argmax(axis=1)).tolist()


def test_equal_models_have_no_divergence_and_near_ones_the_right_one():
    base = some_logits(200, 5000, 3)
    tops, targets = base.argmax(axis=1), np.zeros(200, np.int64)
    equal = compare(shifted(base), tops, base + 3.0, targets)
    assert equal.kl.mean() < 5e-7
    assert equal.same.all()
    near = base + some_logits(200, 5000, 4, spread=0.02)  # like 8-bit weights
    p, q = log_softmax(base), log_softmax(near)
    right = (np.exp(p) * (p - q)).sum(axis=1).mean()
    assert compare(shifted(base), tops, near, targets).kl.mean() == pytest.approx(right, rel=0.01)


def test_impossible_tokens_and_padded_vocabularies():
    base = some_logits(6, 100, 5)
    base[:, 50:60] = -np.inf
    wide = np.concatenate([base, np.full((6, 28), 9.0, np.float32)], axis=1)
    targets = np.arange(6)
    scores = compare(shifted(base), base.argmax(axis=1), wide, targets)
    assert np.abs(scores.kl).max() < 5e-6
    np.testing.assert_allclose(scores.nll, -log_softmax(base)[np.arange(6), targets], atol=1e-5)
    broken = base.copy()
    broken[2, 7] = np.nan
    assert np.isnan(compare(shifted(base), base.argmax(axis=1), broken, targets).kl[2])


def test_summaries():
    values = np.array([1.0, 2.0, 3.0, 6.0])
    assert mean(values) == (3.0, pytest.approx(values.std(ddof=1) / math.sqrt(4)))
    value, error = perplexity(np.log(values))
    assert value == pytest.approx(36 ** (1 / 4))
    assert error == pytest.approx(value * mean(np.log(values))[1])


def test_a_stored_reference_comes_back_and_a_cut_one_is_refused(tmp_path: Path):
    windows = cut(list(range(900)), 128, None, 300)
    blocks = [
        some_logits(len(ids) - 1 - windows.first, 1000, i) for i, ids in enumerate(windows.ids)
    ]

    def scored() -> Iterator[np.ndarray]:
        yield from blocks
        with pytest.raises(ToolError):  # described only once it is whole
            load_reference(tmp_path)

    record(tmp_path, windows, _TEXT, scored())
    known = load_reference(tmp_path)
    assert known.windows == windows
    nll = [
        -log_softmax(logits)[np.arange(len(logits)), list(ids[windows.first + 1 :])]
        for ids, logits in zip(windows.ids, blocks, strict=True)
    ]
    assert known.perplexity.value == pytest.approx(math.exp(np.concatenate(nll).mean()), rel=1e-6)
    for (base, tops), logits in zip(known.blocks(), blocks, strict=True):
        assert (tops == logits.argmax(axis=1)).all()
        np.testing.assert_array_equal(base, shifted(logits))
    on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert on_disk <= reference_bytes(1000, 300) <= 1.1 * on_disk
    with (tmp_path / "base.f16").open("r+b") as file:
        file.truncate(on_disk // 2)
    with pytest.raises(ToolError, match="not whole"):
        load_reference(tmp_path)


_GOOD = Fidelity(Perplexity(12.0, 0.3, 2000, "bundled text", "0" * 64), 0.03, 0.001, 0.2, 0.93)


def test_limits_are_the_recipes():
    recipe = replace(find_recipe("q4_k_m"), limits=Limits(kl_mean=0.03, same_top=0.93))
    require_quality(recipe, _GOOD)
    free = replace(recipe, limits=None)
    for of, figures, words in (
        (recipe, {"kl_mean": 0.0301}, r"q4_k_m .*KL divergence 0\.0301.*limit is 0\.03"),
        (recipe, {"same_top": 0.92}, r"92\.0%.*limit is 93\.0%"),
        (recipe, {"kl_mean": math.nan}, "finite"),
        (free, {"kl_mean": math.inf}, "finite"),
    ):
        with pytest.raises(QualityError, match=words):
            require_quality(of, replace(_GOOD, **figures))
    require_quality(free, replace(_GOOD, kl_mean=5.0, same_top=0.0))


_LINE = (
    '{"task": "t", "messages": [{"role": "user", "content": "q"}], "answer": "a", "max_tokens": 4}'
)


def test_questions_are_read(tmp_path: Path):
    path = tmp_path / "graded.jsonl"
    path.write_text(f"{_LINE}\n\n{_LINE}\n")
    assert (
        read_questions(path)
        == [GradedQuestion("t", [{"role": "user", "content": "q"}], "a", 4)] * 2
    )


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[]",
        '{"task": "t"}',
        _LINE.replace("4", '"x"'),
        _LINE.replace("4", "1e999"),
        "[" * 9000,
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str):
    path = tmp_path / "graded.jsonl"
    path.write_text(f"{_LINE}\n{bad}\n")
    with pytest.raises(SourceError, match="line 2"):
        read_questions(path)


def test_questions_that_are_no_text(tmp_path: Path):
    (tmp_path / "graded.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match="cannot be read as text"):
        read_questions(tmp_path / "graded.jsonl")
    with (tmp_path / "graded.jsonl").open("wb") as file:
        file.truncate(2**40)  # a hole
    with pytest.raises(SourceError, match="more than 64 MiB"):
        read_questions(tmp_path / "graded.jsonl")


def test_answers_match_exactly_but_for_white_space():
    questions = [GradedQuestion(task, [], "Paris", 4) for task in ("b", "a", "a", "a")]
    quality = grade(questions, ["Paris", " Paris\n", "paris", "Paris."])
    assert quality.tasks == {"a": 1 / 3, "b": 1.0}
    assert (quality.task_accuracy, quality.questions) == (0.5, 4)
