"""A draft model on real files: its guesses change no answer, and what it is refused for."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantize.resolve import resolve
from runtimes.engine.engine import Engine
from runtimes.engine.loading import load_with_draft
from runtimes.engine.propose import Proposer
from runtimes.engine.sequence import Sequence
from runtimes.errors import ModelError
from runtimes.llamacpp.backend import BACKEND as LLAMACPP
from runtimes.models.gguf import read_header
from runtimes.models.memory import draft_settings, estimate
from runtimes.models.registry import read_model
from runtimes.request import Completion, Constraint, Request, SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.worker.engine import WorkerEngine
from tests.runtimes.engine.histories import held_by
from tests.runtimes.engine.test_engine import chat
from tests.runtimes.ties import near_tie, near_ties
from tests.support import until

QUESTIONS = ("Tell a story about a fox.", "What is the sea?", "Count to ten.", "Who are you?")
ANIMAL = {"type": "object", "properties": {"animal": {"type": "string", "maxLength": 20}}}


class Always(Proposer):
    """Has the draft guess at every step, whatever it costs."""

    depth = 4

    def propose(self, decoding, most):
        self._guesses, self.drafted, self.drafting_s = {}, frozenset(), 0.0
        wanted = {}
        for one in decoding:
            left = one.request.params.max_tokens - len(one.output) - 1
            room = min(self.depth, left, most, self.draft.room(one))
            if room > 0:
                wanted[one], most = room, most - room
        return self._ask_draft(wanted) if wanted else {}

    def learn(self, rows, more, seconds, accepted):
        self.draft.settle(one for one, _ in accepted)
        for one, held in held_by(self.draft).items():
            assert held == one.tokens(0, len(held))


def drafting(model: Path, draft: Path, **fields) -> Engine:
    """An engine whose draft guesses at every step."""
    settings = RunnerSettings(**{"slots": 1, "context": 512, "draft": draft, **fields})
    engine = Engine.load(model, settings)
    scheduler = engine._core.scheduler
    assert scheduler.proposer is not None
    assert scheduler.proposer.draft is not None
    scheduler.proposer = Always(scheduler.proposer.draft)
    return engine


def shuffled(path: Path, out: Path) -> Path:
    """The same vocabulary, and weights that say nothing: the blocks of each matrix in another
    order."""
    data, tensors = bytearray(path.read_bytes()), read_header(path).tensors
    begin = len(data) - max(one.offset + one.nbytes for one in tensors)
    dice = np.random.default_rng(7)
    for one in tensors:
        if one.type_name == "Q8_0" and one.name.startswith("blk."):
            at = begin + one.offset
            blocks = np.frombuffer(data[at : at + one.nbytes], np.uint8).reshape(-1, 34)
            data[at : at + one.nbytes] = dice.permutation(blocks).tobytes()
    out.write_bytes(data)
    return out


@pytest.fixture(scope="module")
def q8_0(pebble_built: Path) -> Path:
    return resolve(pebble_built, recipe="q8_0")


@pytest.fixture(scope="module")
def nonsense(q8_0: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shuffled(q8_0, tmp_path_factory.mktemp("draft") / "nonsense.gguf")


@pytest.fixture(
    scope="module",
    params=[
        ("q8_0", "q8_0", False, 1),
        ("q8_0", "q4_k_m", True, 3),
        ("onnx-int8", "q8_0", False, 2),
        ("q8_0", "onnx-int4", False, 1),
    ],
    ids=["itself", "unified", "onnx", "onnx-draft"],
)
def engines(request, pebble_built: Path) -> Iterator[tuple[Engine, Engine]]:
    """Without speculation, and with a draft that guesses at every step."""
    recipe, draft, unified, slots = request.param
    path = resolve(pebble_built, recipe=recipe)
    settings = RunnerSettings(slots=slots, context=512, unified_kv=unified)
    with (
        Engine.load(path, settings) as plain,
        drafting(
            path, resolve(pebble_built, recipe=draft), slots=slots, unified_kv=unified
        ) as other,
    ):
        yield plain, other


VARIANTS = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "seed": 5, "top_k": 20},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "stop": {"stop": ("the",)},
    "samples": {"temperature": 0.7, "seed": 9, "n": 2},
    "json": {"constraint": Constraint("json_schema", json.dumps(ANIMAL))},
    "long": {"ignore_eos": True, "max_tokens": 400},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_answers_are_the_same(engines, name):
    params = SamplingParams(**{"max_tokens": 48, "top_logprobs": 2, **VARIANTS[name]})
    done = [
        [engine.submit(Request(chat(engine, text), params)) for text in QUESTIONS]
        for engine in engines
    ]
    plain, other = ([stream.result(120) for stream in streams] for streams in done)
    if params.temperature == 0:
        model = engines[0].model
        # Two runtimes round differently by how many tokens go in, and the cache is a shared one.
        near_ties(plain, other, within=max(near_tie(model, unified=True), 0.1))
    else:
        assert sum(a.token_ids == b.token_ids for a, b in zip(plain, other, strict=True)) >= 2
    alone = engines[1]._core.kv.capabilities.mixed_batch or engines[1].slots == 1
    if name == "long" and alone:
        times = [one.timings for one in other]
        assert all(0 < one.accepted_drafts <= one.drafted_tokens for one in times)
        assert all(one.drafted_tokens == one.proposed_tokens for one in times)


def answered(engine: Engine, tokens: int = 120) -> list[Completion]:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return [engine.submit(Request(chat(engine, text), params)).result(120) for text in QUESTIONS]


def test_a_model_guesses_itself_and_nonsense_does_not(q8_0, nonsense):
    with drafting(q8_0, q8_0) as engine:
        answered(engine)
        stats = engine.stats()
        assert stats.draft == q8_0.name
        assert stats.accepted_drafts > 0.95 * stats.drafted_tokens > 100
    with drafting(q8_0, nonsense) as engine:
        answered(engine)
        stats = engine.stats()
        assert stats.accepted_drafts < 0.1 * stats.drafted_tokens


def test_a_draft_that_is_wrong_is_left_out_soon(q8_0, nonsense):
    settings = RunnerSettings(slots=1, context=512, draft=nonsense)
    with Engine.load(q8_0, settings) as engine:
        done = [answered(engine, 300) for _ in range(2)]
        stats = engine.stats()
    # Beside a few at first, two guesses in every sixteenth step, if times let them seem free.
    assert sum(len(one.token_ids) for some in done for one in some) == 2400
    assert stats.drafted_tokens < 400


def test_sampled_tokens_keep_their_distribution(q8_0):
    """The third token of 300 answers with a draft, and of 300 other ones without: a chi-square test
    of homogeneity. Seeds are fixed."""

    def drawn(engine: Engine, first: int) -> Counter[int]:
        prompt = chat(engine, QUESTIONS[0])
        streams = [
            engine.submit(
                Request(prompt, SamplingParams(temperature=1.0, max_tokens=4, seed=first + i))
            )
            for i in range(300)
        ]
        answers = [stream.result(120) for stream in streams]
        return Counter(one.token_ids[2] for one in answers if len(one.token_ids) > 2)

    with Engine.load(q8_0, RunnerSettings(slots=1, context=512)) as engine:
        plain = drawn(engine, 1000)
    with drafting(q8_0, q8_0) as engine:
        other = drawn(engine, 5000)
        assert engine.stats().accepted_drafts > 150
    both = plain + other
    common = [token for token, count in both.items() if count >= 20]
    pairs = [(plain[token], other[token]) for token in common]
    rest = (plain.total() - sum(a for a, _ in pairs), other.total() - sum(b for _, b in pairs))
    pairs += [rest] if sum(rest) >= 20 else []
    share = plain.total() / both.total()
    chi = sum(
        (a - share * (a + b)) ** 2 / (share * (a + b))
        + (b - (1 - share) * (a + b)) ** 2 / ((1 - share) * (a + b))
        for a, b in pairs
    )
    degrees = len(pairs) - 1
    assert degrees >= 3
    # Wilson and Hilferty: 4 standard deviations, one in 30,000.
    assert (chi / degrees) ** (1 / 3) < 1 - 2 / (9 * degrees) + 4 * (2 / (9 * degrees)) ** 0.5


def test_another_vocabulary_is_refused(q8_0):
    other = LLAMACPP.selftest
    with pytest.raises(
        ModelError, match=r"cannot be the draft of .*: token \d+ is .* to the model"
    ):
        Engine.load(q8_0, RunnerSettings(slots=1, context=128, draft=other))


@pytest.mark.parametrize("cut", [None, 100_000])
def test_a_missing_or_truncated_draft_is_refused(q8_0, tmp_path, cut):
    draft = tmp_path / "small.gguf"
    if cut:
        draft.write_bytes(q8_0.read_bytes()[:cut])
    with pytest.raises(ModelError, match=r"small\.gguf"):
        Engine.load(q8_0, RunnerSettings(slots=1, context=128, draft=draft))


def test_it_counts_in_the_estimate_and_is_left_out_where_memory_is_short(q8_0, monkeypatch, caplog):
    model, settings = read_model(q8_0), RunnerSettings(slots=2, context=512, gpu_layers=0)
    with_draft = replace(settings, draft=q8_0)
    alone = estimate(model, settings).total
    both = estimate(model, with_draft).total
    assert both == alone + estimate(model, draft_settings(with_draft)).total
    monkeypatch.setattr("runtimes.engine.loading.memory_now", lambda: (both, both - 1))
    with caplog.at_level(logging.WARNING):
        runner, draft = load_with_draft(model, with_draft)
    runner.close()
    assert draft is None
    assert f"without the draft {q8_0.name}" in caplog.text


def test_a_worker_that_was_killed_has_it_again(q8_0):
    settings = RunnerSettings(slots=1, context=256, draft=q8_0)
    scheduling = SchedulerSettings(speculation=True)
    with WorkerEngine.load(q8_0, settings, scheduling) as engine:
        assert engine.stats().draft == q8_0.name
        first = engine.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: engine.pid != first)
        prompt = engine.encode("The sea")
        done = engine.submit(Request(prompt, SamplingParams(max_tokens=4))).result(120)
        assert done.token_ids
        assert engine.pid != first
        assert until(lambda: engine.stats().draft) == q8_0.name


def test_who_cannot_verify_has_none(q8_0, caplog):
    settings = RunnerSettings(slots=1, context=256, reproducible=True, draft=q8_0)
    with caplog.at_level(logging.WARNING), Engine.load(q8_0, settings) as engine:
        assert engine.stats().draft is None
    assert "cannot verify guesses in reproducible steps" in caplog.text


def test_a_draft_that_fails_is_left_out(q8_0, caplog):
    with drafting(q8_0, q8_0) as engine:
        draft = engine._core.scheduler.proposer.draft

        def broken(plan):
            raise ModelError("the draft's step failed")

        draft._runner.execute = broken
        with caplog.at_level(logging.WARNING):
            done = answered(engine, 20)
        assert all(len(one.token_ids) == 20 for one in done)
        assert engine.stats().draft is None
    assert "guesses no more" in caplog.text


def test_what_a_row_leaves_serves_the_next(q8_0):
    with drafting(q8_0, q8_0) as engine:
        draft = engine._core.scheduler.proposer.draft
        placed: list[int] = []
        place = draft._place

        def noted(sequence: Sequence) -> None:
            place(sequence)
            placed.append(len(draft._aligned(sequence).held))

        draft._place = noted
        for name in ("Ann", "Tom"):
            prompt = engine.encode(f"The fox and the sea, the fox and the sea. {name} said")
            engine.submit(Request(prompt, SamplingParams(max_tokens=8))).result(120)
    assert placed[0] == 0
    assert placed[1] > 8
