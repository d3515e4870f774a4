"""The choice on given figures, and plans that are written down and read again."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.models.memory import estimate
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.planner.candidates import (
    BUSY,
    Candidate,
    Measured,
    Overrides,
    PlanTask,
    best_of,
    candidates,
    finalists,
    reasons,
    slots_for,
    speeds,
    variants,
)
from runtimes.planner.known import fingerprint_of, load_plan, save_plan
from runtimes.planner.plan import DEPTHS, TRIAL_TOKENS, Figures, Plan, Profile
from runtimes.planner.search import (
    Round,
    Sample,
    Trial,
    TrialError,
    choose_size,
    figures_of,
    is_settled,
    load_trial,
    make_plan,
    remaining,
    sizes_to_try,
    step_size,
    without_drift,
)
from runtimes.planner.trial_child import FILL_S, LEAST_DEPTH, depth_to_fill, extrapolated
from runtimes.settings import RunnerSettings

PLENTY = 2**40


@pytest.fixture(scope="module")
def models(pebble_built: Path) -> list[ModelFile]:
    from quantize.resolve import resolve

    return [read_model(resolve(pebble_built, recipe=recipe)) for recipe in ("q4_k_m", "onnx-int4")]


GPUS = frozenset({"llamacpp"})


def task(workload="batch", profile="balanced", **more) -> PlanTask:
    return PlanTask(workload, profile, **{"cores": 2, "free": PLENTY, **more})


def measured(candidate: Candidate, prefill: float, decode: dict[int, float], most=32) -> Measured:
    return Measured(candidate, Figures(prefill, decode), most)


def test_what_is_tried(models) -> None:
    gguf, onnx = models
    found = candidates(models, task())
    assert {(c.model.path, c.settings.unified_kv) for c in found} == {
        (gguf.path, False),
        (gguf.path, True),
        (onnx.path, False),
    }
    assert {c.settings.threads for c in found} == {2}
    # One row has no use for a shared cache; without a GPU nothing is offloaded.
    assert [c.settings.unified_kv for c in candidates(models, task("chat"))] == [False, False]
    assert {c.settings.gpu_layers for c in found} == {0}
    with_gpu = candidates(models, task("chat", gpus=frozenset({"llamacpp", "onnx"})))
    assert {(c.model.runtime, c.settings.gpu_layers, c.settings.device) for c in with_gpu} == {
        ("llamacpp", -1, "auto"),
        ("llamacpp", 0, "auto"),
        ("onnx", 0, "auto"),
        ("onnx", 0, "cpu"),
    }
    assert {c.settings.kv_type for c in candidates([gguf], task(profile="memory"))} == {"q8_0"}
    [found_there] = variants(with_gpu[0], task("chat", gpus=GPUS))
    assert found_there.settings.device_sampling
    assert found_there.memory(task(), 2) > with_gpu[0].memory(task(), 2)
    assert variants(with_gpu[1], task("chat", gpus=GPUS)) == []  # no layers there
    fixed = Overrides(device_sampling=False)
    assert variants(with_gpu[0], task("chat", gpus=GPUS, overrides=fixed)) == []
    assert [c.settings.threads for c in variants(found[0], task(cores=8))] == [7, 4]


def test_what_is_fixed_is_fixed_everywhere(models) -> None:
    values = {"threads": 1, "kv_type": "q4_0", "unified_kv": True, "gpu_layers": 3}
    asked = task(overrides=Overrides(slots=6, context=128, **values), cores=8, gpus=GPUS)
    for candidate in candidates(models[:1], asked):
        for one in (candidate, *variants(candidate, asked)):
            assert {name: getattr(one.settings, name) for name in values} == values
        assert slots_for(measured(candidate, 100, {6: 100}), asked) == 6
        assert asked.context(candidate.model) == 128


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_choice_keeps_to_the_limits(models, data) -> None:
    speed = st.floats(1, 10_000)
    workload = data.draw(st.sampled_from(("chat", "batch")))
    asked = task(workload, data.draw(st.sampled_from(get_args(Profile))))
    found = []
    for candidate in candidates(models, asked):
        most = data.draw(st.integers(1, 40))
        rows = [n for n in asked.row_counts if n <= most] or [asked.base_rows]
        decode = {n: data.draw(speed) for n in {*rows, asked.base_rows}}
        found.append(measured(candidate, data.draw(speed), dict(sorted(decode.items())), most))
    chosen = best_of(found, asked)
    assert chosen in found
    slots = slots_for(chosen, asked)
    assert 1 <= slots <= max(1, min(chosen.most_slots, max(asked.row_counts)))
    if workload == "chat":
        assert slots == 1
    ranking = dict(zip([id(m) for m in found], speeds(found, asked), strict=True))
    best = max(ranking.values())
    if asked.profile == "memory":
        assert ranking[id(chosen)] >= 0.5 * best
        need = chosen.candidate.memory(asked, slots)
        for other in found:
            if ranking[id(other)] >= 0.5 * best:
                assert need <= other.candidate.memory(asked, slots_for(other, asked))
    else:
        assert ranking[id(chosen)] == best
        assert chosen in finalists(found, asked)
    job, rows = chosen.figures.job_tps, chosen.figures.decode_tps
    within = [job(n) for n in rows if n <= chosen.most_slots]
    if within and (asked.profile, workload) == ("balanced", "batch"):
        assert job(slots) >= max(within) / 1.05
    assert all(reasons(chosen, found, asked, slots))


def test_what_is_said_to_fit_is_what_a_plan_would_take(models) -> None:
    model = models[0]
    fixed = Overrides(slots=64, context=512, batch=256)
    # What fits the free memory, though not the part of it that a plan may take.
    need = estimate(model, RunnerSettings(slots=64, context=512, batch=256)).total
    asked = task("batch", free=need + 1000, overrides=fixed)
    with pytest.raises(OutOfMemoryError, match="three quarters") as caught:
        make_plan([model], asked)
    slots, context = map(int, re.findall(r"--slots (\d+) --context (\d+)", str(caught.value))[0])
    assert context == 512
    found = candidates(
        [model], dataclasses.replace(asked, overrides=Overrides(slots, context, batch=256))
    )
    assert all(
        one.slots_that_fit(asked, 256) == slots for one in found if not one.settings.unified_kv
    )
    assert 40 < slots < 60


def test_candidates_are_compared_at_the_rows_that_all_were_measured_with(models) -> None:
    first, second, third = candidates(models, task())
    found = [
        measured(first, 100, {16: 100, 32: 1000}),
        measured(second, 100, {16: 110}),
        measured(third, 100, {16: 90, 32: 90}),
    ]
    assert best_of(found, task()).candidate == second
    assert best_of([found[0], found[2]], task()).candidate == first


@given(st.data())
def test_what_slows_a_whole_round_changes_no_choice(models, data) -> None:
    first, second, *_ = candidates(models, task())
    speeds = {(first, 8): 100.0, (first, 16): 150.0, (second, 8): 110.0, (second, 16): 140.0}
    slowness = data.draw(st.lists(st.floats(0.2, 1), min_size=3, max_size=6))
    rounds = [
        {who: Sample(1000 * part, tps * part, 0) for who, tps in speeds.items()}
        for part in slowness
    ]
    usual = sorted(slowness)[len(slowness) // 2]
    for one in without_drift(rounds):
        found = {who: sample.decode_tps for who, sample in one.items()}
        same = found[first, 8] / 100
        assert found == pytest.approx({who: tps * same for who, tps in speeds.items()})
    ranked = remaining(rounds, list(speeds), task())
    assert ranked[:2] == [(first, 16), (second, 16)]
    assert is_settled(without_drift(rounds), ranked, task())
    if len(slowness) % 2:
        assert figures_of(first, rounds).decode_tps == pytest.approx(
            {8: 100 * usual, 16: 150 * usual}
        )


def test_rounds_go_on_while_two_take_turns_in_front(models) -> None:
    first, second, *_ = candidates(models, task())
    two = [(first, 16), (second, 16)]

    def rounds(*pairs: tuple[float, float]) -> list[Round]:
        samples = ([Sample(1e9, tps, 0) for tps in pair] for pair in pairs)
        return [dict(zip(two, pair, strict=True)) for pair in samples]

    turns = rounds((100, 130), (130, 100), (100, 125), (120, 100))
    assert set(remaining(turns, two, task())) == set(two)
    assert not is_settled(turns, two, task())
    ahead = rounds((120, 100), (130, 112), (110, 100), (119, 102))
    assert is_settled(ahead, remaining(ahead, two, task()), task())
    far = rounds((120, 50), (130, 60), (110, 50))
    assert remaining(far, two, task()) == [two[0]]


SOUND = {"prefill_tps": 5, "decode_tps": {"1": 5}, "scatter": 0, "measured_depth": 0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": "4"}, {"slots": 10**9}, {"slots": [1]}, {"threads": 4096}, {"kv_type": "f99"},
        {"memory": "1"}, {"path": None}, {"workload": ["chat"]}, {"reasons": 5},
        {"unified_kv": 1}, {"figures": "x"}, {"figures": {}}, {"alternatives": [{"file": ""}]},
        {"figures": SOUND | {"prefill_tps": 10**400}}, {"figures": SOUND | {"decode_tps": {}}},
        {"figures": SOUND | {"decode_tps": {"1": 0}}}, {"figures": SOUND | {"measured_depth": "1"}},
        {"depth": None}, {"depth": -1},
    ],
)  # fmt: skip
def test_a_damaged_plan_is_none(wrong) -> None:
    settings = RunnerSettings(slots=2)
    figures = Figures(100.0, {1: 10.0})
    plan = Plan("chat", "balanced", "llamacpp", "/x.gguf", settings, 10**6, figures)
    said = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(said) == plan
    assert Plan.from_json(said | {"figures": SOUND}).figures == Figures(5.0, {1: 5.0})
    with pytest.raises((KeyError, TypeError, ValueError)):
        Plan.from_json(said | wrong)
    del said["depth"]
    with pytest.raises(KeyError):  # as older versions wrote it
        Plan.from_json(said)


@pytest.fixture
def broken(gguf, tmp_path) -> ModelFile:
    """The header stays whole; llama.cpp misses a tensor that its architecture needs."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(gguf.read_bytes().replace(b"output_norm.weight", b"output_morn.weight"))
    return read_model(path)


def test_a_real_plan_is_remembered(models, broken, home, monkeypatch) -> None:
    """With a file beside it that does not run."""
    monkeypatch.setattr("runtimes.planner.search.MOST_ROUNDS", 2)
    asked = task("chat", overrides=Overrides(context=256))
    models = [broken, *models]
    assert load_plan(models, asked) is None
    plan = make_plan(models, asked)
    assert plan.path in {str(model.path) for model in models[1:]}
    [failed] = [one for one in plan.alternatives if one.failure]
    assert failed.file == "broken.gguf"
    assert "cannot load" in failed.failure
    assert (plan.settings.slots, plan.settings.context, plan.settings.threads) == (1, 256, 2)
    assert plan.figures.prefill_tps > 0
    assert {a.file for a in plan.alternatives} == {model.path.name for model in models}
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    save_plan(models, asked, plan)
    assert load_plan(models, asked) == plan
    # Other questions are not answered by it.
    assert load_plan(models, task("batch", overrides=asked.overrides)) is None
    assert load_plan(models, task("chat")) is None
    assert load_plan(models[1:], asked) is None
    assert load_plan(models, dataclasses.replace(asked, cores=1)) is None
    assert load_plan(models, dataclasses.replace(asked, free=plan.memory - 1)) is None
    assert plan.scheduling().max_stall_s == 0.5
    fast = dataclasses.replace(plan, profile="throughput")
    assert fast.scheduling().max_stall_s is None


def test_another_depth_is_another_plan(models, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("INGOT_HOME", str(tmp_path))
    asked = task("chat", depth=2048)
    made = Plan(
        "chat", "balanced", "llamacpp", str(models[0].path), RunnerSettings(), 10**6,
        Figures(100.0, {1: 10.0}, measured_depth=800), depth=2048,
    )  # fmt: skip
    save_plan(models, asked, made)
    deep = dataclasses.replace(made, depth=9000)
    save_plan(models, dataclasses.replace(asked, depth=9000), deep)
    for depth, exact, nearest in (
        (1800, made, made),
        (2800, made, made),
        (1024, None, made),
        (0, None, made),
        (7000, deep, deep),
        (10**9, None, deep),
    ):
        other = dataclasses.replace(asked, depth=depth)
        assert load_plan(models, other) == exact
        assert load_plan(models, other, nearest=True) == nearest


def test_the_depth_leaves_the_context_room_for_a_trial(models) -> None:
    for context, depth in ((64, 0), (TRIAL_TOKENS + 20, 20), (600, 600 - TRIAL_TOKENS)):
        asked = task("chat", depth=DEPTHS["chat"], overrides=Overrides(context=context))
        assert asked.within(models).depth == depth
    assert task(depth=100).within(models).depth == 100


def test_a_depth_is_filled_as_far_as_time_and_room_allow_and_continued_on_a_line() -> None:
    assert depth_to_fill(2048, room=4000, prefill_tps=1000) == 2048
    assert depth_to_fill(2048, room=4000, prefill_tps=100) == 100 * FILL_S
    assert depth_to_fill(2048, room=300, prefill_tps=1000) == 300
    assert depth_to_fill(2048, room=4000, prefill_tps=0.1) == LEAST_DEPTH
    assert extrapolated((16, 0.5), (116, 0.75), 316) == pytest.approx(1.25)
    # A sample that a quiet moment made shorter than that of an empty cache is no gain.
    assert extrapolated((0, 1.0), (100, 0.9), 1000) == 0.9


@pytest.mark.parametrize(("which", "unified"), [(0, True), (1, False)])
def test_a_trial_stands_behind_its_depth(models, which, unified) -> None:
    settings = RunnerSettings(threads=1, gpu_layers=0, unified_kv=unified)
    candidate = Candidate(models[which], settings)
    with load_trial(candidate, task(depth=200), 3) as trial:
        for rows in (3, 1):
            found = trial.sample(16, rows)
            assert found.depth == 200
            assert found.decode_tps > 0
        assert trial.sample(0, 3).prefill_tps == 0
    # With no memory to spare it fills less, and says so.
    with load_trial(candidate, task(depth=200, free=0), 2) as trial:
        found = trial.sample(16, 2)
        assert found.depth == LEAST_DEPTH
        assert found.decode_tps > 0


def test_a_changed_file_has_another_fingerprint(tmp_path, models, monkeypatch) -> None:
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    path = tmp_path / "m.gguf"
    data = bytearray(models[0].path.read_bytes())
    path.write_bytes(data)
    model = read_model(path)
    first = fingerprint_of(model)
    assert fingerprint_of(model) == first == fingerprint_of(models[0])
    data[-1] ^= 1
    path.write_bytes(data)
    second = fingerprint_of(model)
    assert second != first
    # Another file in its place, with its size and its time.
    data[-1] ^= 2
    (tmp_path / "new").write_bytes(data)
    times = path.stat()
    os.utime(tmp_path / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "new").replace(path)
    assert fingerprint_of(model) not in (first, second)


def test_reasons_compare_what_was_measured_in_one_round(models) -> None:
    asked = task("chat")
    fast, slow = (candidates([model], asked)[0] for model in models)

    def measured(candidate, tps: float) -> Measured:
        return Measured(candidate, Figures(100 * tps, {1: tps}), 1)

    # The machine became slower after the first round, in which the chosen one was far ahead.
    deep = dataclasses.replace(asked, depth=2048)
    screened = [measured(fast, 300), measured(slow, 100)]
    line, *_ = reasons(measured(fast, 50), screened, deep, 1, screened[0])
    assert f"3.00 times as fast as {models[1].path.name}" in line
    assert "2.61 s for 256 prompt tokens and 128 of answer behind 2,048;" in line
    for scatter, told in ((BUSY, False), (BUSY + 0.01, True)):
        noisy = Measured(fast, Figures(100, {1: 10}, scatter=scatter), 1)
        assert ("busy" in " ".join(reasons(noisy, [noisy], asked, 1))) == told


def test_where_no_file_runs_each_way_is_tried_and_told(broken) -> None:
    said: list[str] = []
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        make_plan([broken], task("chat", gpus=GPUS), said.append)
    # Layers on a GPU, and without one.
    assert [line.removeprefix("trying broken.gguf") for line in said] == [
        " with the GPU on 2 threads",
        " on 2 threads",
    ]


def test_a_trial_that_dies_says_of_what(models, monkeypatch) -> None:
    monkeypatch.setenv("LANGUAGE", "C")  # another environment: tests.forks starts the child anew
    found = candidates(models, task())[0].settings
    asked = dataclasses.replace(found, slots=2, context=TRIAL_TOKENS)
    with Trial(models[0].path, asked) as trial:
        assert trial.sample(16, 2).decode_tps > 0
        trial._process.kill()
        with pytest.raises(TrialError, match="SIGKILL"):
            trial.sample(16, 2)


def test_the_size_of_a_step_is_measured_where_there_is_a_choice(gguf):
    model = read_model(gguf)
    candidate = Candidate(model, RunnerSettings(threads=2, gpu_layers=0))
    tokens, [reason] = step_size(candidate, task(), slots=4, prefill_tps=5000.0)
    assert re.findall(r" tok/s by (\d+)", reason) == ["128", "256", "512"]
    assert reason.startswith(f"steps of up to {tokens} tokens: a prompt of 512 goes in at ")
    assert step_size(candidate, task(overrides=Overrides(batch=100)), 4, 5000.0) == (100, [])
    # A slow machine tries no prompt that takes long, a short slot none that it cannot hold.
    assert step_size(candidate, task(), 4, prefill_tps=60.0) == (RunnerSettings().batch, [])
    short = task(overrides=Overrides(context=200))
    for asked, slots, tps, sizes in (
        (task(), 4, 110.0, (128, 256)),
        (short, 4, 5000.0, (128,)),
        (task(), 200, 5000.0, (256, 512)),
    ):
        assert sizes_to_try(candidate, asked, slots, tps) == sizes


@pytest.mark.parametrize(
    ("speeds", "chosen"),
    [
        ({128: 100.0, 256: 101.0, 512: 101.5}, 128),
        ({128: 90.0, 256: 101.0, 512: 100.0}, 256),
        ({128: 80.0, 256: 90.0, 512: 100.0}, 512),
        ({128: 80.0, 256: 90.0}, 512),  # 512 was not tried, and may be faster still
        ({512: 80.0, 1024: 90.0, 2048: 100.0}, 2048),
    ],
)
def test_the_smallest_of_about_equally_fast_steps_is_taken(speeds, chosen):
    assert choose_size(speeds, 512) == chosen
