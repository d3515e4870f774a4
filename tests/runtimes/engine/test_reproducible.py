"""A reproducible row comes out the same to the last bit, whatever runs beside or ran before it."""

from __future__ import annotations

import ctypes
import logging
import random
import re
from pathlib import Path

import numpy as np
import pytest

from runtimes.engine.engine import Engine
from runtimes.engine.loading import load_runner
from runtimes.errors import RequestError
from runtimes.llamacpp.memory import MOST_PROBED, sequences
from runtimes.llamacpp.shapes import Alike, filled, parted
from runtimes.models.memory import estimate
from runtimes.models.registry import backend_of, read_model
from runtimes.request import Priority, Request, SamplingParams
from runtimes.runner import Logits, StepRow, require_full_logits
from runtimes.settings import RunnerSettings, SchedulerSettings

# Each has kernels of its own; the second half is made here from the first file.
BUILT = ("pebble-q8_0.gguf", "pebble-q4_k_m.gguf", "onnx-int4", "onnx-int8")
MADE = ("F16", "Q4_0", "Q6_K", "IQ4_XS")

Answer = tuple[tuple[int, ...], tuple[float, ...] | None]


@pytest.fixture(scope="module", params=[*BUILT, *MADE])
def model(
    request: pytest.FixtureRequest, pebble_built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if request.param in BUILT:
        return pebble_built / request.param
    import llama_cpp

    path = tmp_path_factory.mktemp("made") / f"pebble-{request.param}.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.allow_requantize = True
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{request.param}")
    source = str(pebble_built / BUILT[0]).encode()
    assert llama_cpp.llama_model_quantize(source, str(path).encode(), ctypes.byref(params)) == 0
    return path


def prompts(vocabulary: int) -> list[list[int]]:
    """Some begin alike; lengths lie on both sides of where prompts are cut."""
    source = random.Random(1)

    def text(length: int) -> list[int]:
        return [source.randrange(10, vocabulary) for _ in range(length)]

    begin = text(300)
    lengths = ((0, 5), (0, 128), (0, 129), (128, 1), (257, 0), (300, 90))
    return [begin[:shared] + text(own) for shared, own in lengths]


def answers(model: Path, slots: int, order: int, *, cache: bool) -> list[list[Answer]]:
    """What the prompts get, in an order of arrival of their own, among requests that come and go,
    overtake them and take their slots."""
    chance = random.Random(order)
    scheduling = SchedulerSettings(
        prefix_cache=cache,
        aging_s=0.1,
        max_stall_s=chance.choice([None, 0.0]),
        prefix_bytes=chance.choice([0, 2**26]),
    )
    settings = RunnerSettings(slots=slots, context=512, reproducible=True)
    with Engine.load(model, settings, scheduling) as engine:
        wanted = prompts(min(engine.vocab_size, 500))
        streams = {}
        for index in chance.sample(range(len(wanted)), len(wanted)):
            params = SamplingParams(
                max_tokens=5,
                ignore_eos=True,
                logprobs=True,
                temperature=0.8 * (index % 2),
                seed=index,
                n=1 + (index == 3),
            )
            priority = chance.choice(list(Priority))
            streams[index] = engine.submit(Request(wanted[index], params, priority=priority))
            other = engine.submit(
                Request(
                    wanted[-1][: chance.randrange(20, 250)],
                    SamplingParams(max_tokens=8, ignore_eos=True),
                    priority=chance.choice(list(Priority)),
                )
            )
            if chance.random() < 0.5:
                next(iter(other), None)
                other.cancel()
        found = [streams[index].result() for index in range(len(wanted))]
    return [[(c.token_ids, c.logprobs) for c in completion.choices] for completion in found]


def test_a_row_is_the_same_to_the_last_bit_whatever_happens_around_it(model):
    """With every number of slots, in any order, with and without a cache of prompts."""
    alone = answers(model, 1, 0, cache=False)
    assert all(len(tokens) == 5 for row in alone for tokens, _ in row)
    for slots, cache in ((3, True), (16, False)):
        assert answers(model, slots, slots, cache=cache) == alone, f"{slots} slots"


@pytest.mark.parametrize("name", BUILT)
def test_rows_in_slots_far_apart_are_the_same(pebble_built, name):
    """A pass that is filled up reaches into slots whose rows have a pass of their own."""
    settings = RunnerSettings(slots=16, context=64, reproducible=True)
    runner = load_runner(read_model(pebble_built / name), settings)
    prompts = {slot: list(range(slot + 20, slot + 26)) for slot in range(16)}
    for slot, tokens in prompts.items():
        runner.execute((StepRow(slot, 0, tokens, 0),))

    def decode(*slots: int) -> dict[int, Logits]:
        plan = tuple(StepRow(slot, 6, (7,), 1) for slot in slots)
        logits = require_full_logits(runner.execute(plan)).copy()
        for slot in slots:
            runner.kv.trim(slot, 6)
        return dict(zip(slots, logits, strict=True))

    together = decode(*range(16))
    for slots in ((0, 5), (0, 5, 11, 15), (3,), (1, 2, 9), tuple(range(11))):
        for slot, logits in decode(*slots).items():
            assert np.array_equal(logits, together[slot]), f"slot {slot} of {slots}"
    runner.close()


@pytest.mark.parametrize("slots", [1, 3])
def test_what_it_takes_is_known_before(pebble_built, slots, caplog):
    """Further slots and the room for tokens that fill a pass up are counted, as llama.cpp does."""
    model = read_model(pebble_built / BUILT[0])
    with caplog.at_level(logging.DEBUG, logger="runtimes.llamacpp.native"):
        settings = RunnerSettings(slots=slots, context=1000, reproducible=True)
        load_runner(model, settings).close()
    taken = sum(map(float, re.findall(r"KV buffer size = +([\d.]+) MiB", caplog.text))) * 2**20
    usual = RunnerSettings(slots=sequences(slots), context=1000 + MOST_PROBED)
    expected = backend_of(model).estimate(model, usual).kv
    assert estimate(model, settings).kv == expected
    assert taken <= expected < 1.1 * taken + 2**20


def test_a_shared_cache_is_refused(pebble_built):
    settings = RunnerSettings(slots=2, context=64, unified_kv=True, reproducible=True)
    with pytest.raises(RequestError, match="a cache for each slot"):
        Engine.load(pebble_built / BUILT[0], settings)


@pytest.mark.parametrize(
    "rule", [Alike(2, 1), Alike(2, 1, 12), Alike(4, 4), Alike(8, 4), Alike(8, 8)], ids=str
)
def test_every_number_of_rows_has_a_pass_of_the_right_size(rule):
    for slots in range(1, 41):
        there = sequences(slots)
        assert slots <= there < slots + 4
        for needed in range(1, slots + 1):
            chosen, tokens = rule.shape(needed, there)
            assert needed <= chosen <= there
            assert rule.holds(chosen * tokens)
            assert tokens < MOST_PROBED
    assert rule.shape(8, 8) == (8, 1), "no row is wasted where there are enough"


@pytest.mark.parametrize("rule", [Alike(2, 1, 12), Alike(8, 4), Alike(8, 8)], ids=str)
def test_no_pass_is_larger_than_what_was_measured(rule):
    for slots in (1, 12, 28, 64, 100):
        rows = [StepRow(slot, 5, (7,), 1) for slot in range(slots)]
        there = sequences(slots)
        parts = [filled(part, [5] * there, rule) for part in parted(rows, there, rule)]
        assert all(rule.holds(len(part) * len(part[0].tokens)) for part in parts)
        assert all(len(part) * len(part[0].tokens) <= rule.most for part in parts)
        wanted = [row.slot for part in parts for row in part if row.logits]
        assert wanted == list(range(slots))
