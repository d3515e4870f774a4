"""Jobs that ran are remembered, and what would have been faster is said of what was measured."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from app.models.advice import in_words, learned_plan
from app.models.planning import LoadChoice, choose, plan_files, task_for
from app.options import ModelOptions, PlanOptions
from app.serve.pool import ModelPool, ServedModel
from quantize.resolve import resolve
from runtimes.engine.metrics import EngineStats, Percentiles
from runtimes.models.memory import estimate, gib
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.planner import learned
from runtimes.planner.candidates import PlanTask
from runtimes.planner.known import save_plan
from runtimes.planner.learned import RowShape, Setup, best_change, past_works, remember_work
from runtimes.planner.plan import Alternative, Figures, Plan
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings
from tests.app.batch.conftest import Batch
from tests.support import write_rows

SETTINGS = RunnerSettings(slots=4, context=256, threads=1)
# One row more takes little here, and a prompt of the other file is read ten times as fast.
DECODE, PROMPTS = Figures(500.0, {4: 100.0, 8: 150.0}), Figures(5000.0, {4: 60.0, 8: 70.0})


@pytest.fixture(scope="module")
def models(pebble_built: Path) -> list[ModelFile]:
    return [read_model(resolve(pebble_built, recipe=recipe)) for recipe in ("q4_k_m", "onnx-int4")]


def plan_of(models: list[ModelFile]) -> Plan:
    gguf, onnx = models
    looked_at = (
        Alternative(gguf.path.name, "llamacpp", SETTINGS, DECODE),
        Alternative(onnx.path.name, "onnx", SETTINGS, PROMPTS),
    )
    memory = estimate(gguf, SETTINGS).total
    about = ("batch", "balanced", "llamacpp", str(gguf.path), SETTINGS, memory, DECODE)
    return Plan(*about, reasons=("tried",), alternatives=looked_at)


def ran(model: ModelFile, rows: int, shape: RowShape, tps: float) -> None:
    """A job of 100 rows, in steps of exactly this speed."""
    nothing = {one.name: 0 for one in fields(EngineStats)}
    prompt, answer = round(100 * shape.prompt), round(100 * shape.answer)
    seconds = (prompt + answer) / tps
    stats = EngineStats(**nothing | {
        "slots": rows, "steps": 1000, "completions": 100, "prompt_tokens": prompt,
        "completion_tokens": answer, "decode_tokens": answer - 100, "prefill_s": seconds / 2,
        "decode_s": seconds / 2, "ttft_s": Percentiles(), "tpot_s": Percentiles(),
    })  # fmt: skip
    remember_work(model, replace(SETTINGS, slots=rows), stats, rows)


def test_a_job_is_remembered_and_told_what_would_be_faster(
    batch: Batch, home: Path, pebble_built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned, "_ENOUGH_S", 0.0)
    batch.model = pebble_built
    files = plan_files(str(pebble_built), ModelOptions(), None).models
    models = sorted(files, key=lambda one: one.path.name, reverse=True)
    assert [one.path.name for one in models] == ["pebble-q4_k_m.gguf", "onnx-int4"]
    save_plan(files, task_for("batch", "balanced"), plan_of(models))
    body = {"max_tokens": 30, "ignore_eos": True}
    rows = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions",
         "body": {**body, "prompt": f"{i} is a number"}}
        for i in range(24)
    ]  # fmt: skip
    write_rows(batch.source, rows)
    done = batch("--slots", "4", "--context", "256", "--json")
    end = json.loads(done.stdout.splitlines()[-1])
    (work,) = past_works(files)
    assert (work.rows, work.shape.answer) == (4, 30)
    assert work.shape.prompt == pytest.approx(end["prompt_tokens"] / 24)
    new, old = (DECODE.job_tps(rows, work.shape.prompt, 30) for rows in (8, 4))
    change = replace(SETTINGS, slots=8)
    more = estimate(models[0], change).total - estimate(models[0], SETTINGS).total
    expected = f"4 -> 8 slots: {new / old - 1:+.0%} (estimated), needs {gib(more)} more; --slots 8"
    assert end["advice"] == expected
    # Real runs of both count for more than the trials: here they say that it would be slower.
    ran(models[0], 8, work.shape, 1.0)
    done = batch("--slots", "4", "--context", "256", "--fresh")
    assert "faster:" not in done.stderr
    assert len(next(one for one in past_works(files) if one.rows == 4).tps) == 2


def test_a_plan_learns_the_rows_and_goes_back_where_it_was_wrong(
    models: list[ModelFile], home: Path
) -> None:
    gguf, onnx = models
    plan, task = plan_of(models), PlanTask("batch", "balanced", cores=1, free=2**40)
    assert learned_plan(plan, models, task) == plan  # nothing ran here
    # Rows like those of the trials: more of them together, as the trials say.
    ran(gguf, 4, RowShape(128, 128), 120.0)
    found = learned_plan(plan, models, task)
    assert (found.path, found.settings.slots) == (str(gguf.path), 8)
    assert found.reasons[-1].startswith("rows of jobs here had about 128 + 128 tokens: 4 -> 8")
    fixed = replace(task, overrides=replace(task.overrides, slots=4))
    assert learned_plan(plan, models, fixed).settings == plan.settings
    # Long prompts and short answers: the file that reads prompts fast.
    long = RowShape(2000, 4)
    ran(gguf, 4, long, 480.0)
    found = learned_plan(plan, models, task)
    assert (found.path, found.runtime, found.settings.slots) == (str(onnx.path), "onnx", 8)
    assert found.memory == estimate(onnx, found.settings).total
    assert "onnx-int4 instead of pebble-q4_k_m.gguf" in found.reasons[-1]
    # It ran, and was slower than the other: back, whatever the trials say.
    ran(onnx, 8, long, 300.0)
    back = learned_plan(found, models, task)
    assert back.path == str(gguf.path)
    assert [reason for reason in back.reasons if reason.startswith("rows of jobs")] == [
        back.reasons[-1]
    ]
    settled = learned_plan(back, models, task)
    assert (settled.path, settled.settings) == (back.path, back.settings)


def test_a_server_remembers_what_it_answered(
    home: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned, "_ENOUGH_S", 0.0)
    fixed = ModelOptions(threads=1, context=256)

    def chosen() -> LoadChoice:
        return choose(str(gguf_file), fixed, PlanOptions(), "batch", 4)

    pool = ModelPool([ServedModel("own", chosen, fixed_slots=True)])
    with pool.lease("own") as served:
        long = SamplingParams(max_tokens=24, ignore_eos=True)
        served.engine.generate([[i, 7, 8] for i in range(1, 9)], long)
        assert past_works([served.choice.file]) == []
    pool.close()
    (work,) = past_works([chosen().file])
    assert 2 <= work.rows <= 4
    assert (work.shape.prompt, work.shape.answer) == (3, 24)


def test_no_advice_beyond_the_memory_or_from_damage(models: list[ModelFile], home: Path) -> None:
    gguf, _ = models
    now, shape = Setup(gguf, SETTINGS), RowShape(100, 100)
    plan = plan_of(models)
    change = best_change(now, plan, models, shape, least=0.1, allowed=lambda _: True)
    assert change is not None
    assert not change.measured
    assert "(estimated)" in in_words(now, change)
    nowhere = best_change(now, plan, models, shape, least=0.1, allowed=lambda _: False)
    assert nowhere is None
    assert best_change(now, None, models, shape, least=0.1, allowed=lambda _: True) is None
    ran(gguf, 4, shape, 100.0)
    ran(gguf, 16, shape, 150.0)
    change = best_change(now, None, models, shape, least=0.1, allowed=lambda _: True)
    assert change is not None
    assert (change.to.settings.slots, change.measured) == (16, True)
    assert change.gain == pytest.approx(0.5, abs=0.01)
    path = home / "state" / "works.json"
    kept = json.loads(path.read_text())
    (one, *_) = kept.values()
    damaged = [{**one, "tps": "x"}, {**one, "rows": -1}, {**one, "shape": 3}, 7, {}]
    damaged += [{**one, "setting": 7}, {**one, "setting": [[1]]}]
    path.write_text(json.dumps({str(i): entry for i, entry in enumerate(damaged)}))
    assert past_works(models) == []
