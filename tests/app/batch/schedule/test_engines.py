"""Several engines on one job: where they run, whether they fit, and what a row may lose to them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.batch.schedule import engines
from app.batch.schedule.engines import (
    default_slots,
    parse_count,
    placements,
    require_room,
    spans,
)
from app.batch.schedule.job import Job
from app.batch.schedule.pool_engine import EngineState, PoolEngine
from app.models.planning import LoadChoice
from runtimes.errors import IngotError, OutOfMemoryError, RequestError
from runtimes.machine.cpu import Core
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.worker.engine import WorkerEngine
from runtimes.worker.recovery import DeathLimit
from tests.app import stopping
from tests.app.batch.conftest import Batch
from tests.app.batch.schedule.jobs import rows_of, run
from tests.support import own_home, write_rows

PROMPTS = [f"The number {i} is" for i in range(24)]


@pytest.fixture(scope="module")
def pair(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WorkerEngine]]:
    """Two engines; the second is not started again when it has died."""
    settings = RunnerSettings(slots=2, context=128, threads=1)
    with (
        own_home(tmp_path_factory.mktemp("home")),
        WorkerEngine.load(gguf_file, settings) as first,
        WorkerEngine.load(gguf_file, settings, deaths=DeathLimit(1, 3600)) as second,
    ):
        yield [first, second]


def texts(members: list[PoolEngine], tick: Any = lambda: None) -> tuple[Job, list[str | None]]:
    """The job after its end, and what each row was answered."""
    job, answers = run(members, rows_of(PROMPTS), tick, retries=0)
    return job, [answers[index].response for index in range(len(PROMPTS))]


def kill_once(engine: WorkerEngine, after: PoolEngine) -> Any:
    """Called at each tick: kills the engine's process as soon as ``after`` has finished a row."""
    killed = threading.Event()

    def tick() -> None:
        if not killed.is_set() and after.counts.answered and engine.pid is not None:
            killed.set()
            os.kill(engine.pid, signal.SIGKILL)

    return tick


def test_rows_survive_an_engine_and_read_the_same_on_any(pair: list[WorkerEngine]) -> None:
    def both() -> list[PoolEngine]:
        return [PoolEngine(engine, name) for engine, name in zip(pair, ("one", "two"), strict=True)]

    _, alone = texts([PoolEngine(pair[0])])
    members = both()
    job, shared = texts(members)
    assert shared == alone
    assert all(member.counts.answered >= member.engine.slots for member in members)
    tokens = [member.counts.completion_tokens for member in members]
    assert sum(tokens) == job.counts.completion_tokens

    # A dead one is started again; its rows are asked once more, and none is lost.
    members = both()
    job, after = texts(members, kill_once(pair[0], members[0]))
    assert after == alone
    assert (job.counts.crashes, members[0].counts.crashes) == (1, 1)
    assert all(member.ready for member in members)

    # One that cannot be started again is left out.
    members = both()
    _, rest = texts(members, kill_once(pair[1], members[1]))
    assert rest == alone
    assert (members[1].state, members[1].counts.crashes) == (EngineState.LOST, 1)
    assert members[0].ready
    with pytest.raises(IngotError, match="is not started again"):
        texts([PoolEngine(pair[1], "two")])


@pytest.fixture
def choice(gguf_file: Path) -> LoadChoice:
    settings = RunnerSettings(gpu_layers=0)
    return LoadChoice(read_model(gguf_file), settings, SchedulerSettings(), planned=False)


def test_seats_share_the_cores(choice: LoadChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = tuple(Core((i, i + 4), i // 2) for i in range(4))
    monkeypatch.setattr(engines, "cores", lambda: machine)
    dealt = placements("auto", choice)  # two nodes
    assert [(s.where, s.place.cpus, s.threads) for s in dealt] == [
        ("processors 0-1,4-5", (0, 1, 4, 5), 2),
        ("processors 2-3,6-7", (2, 3, 6, 7), 2),
    ]
    few = replace(choice, settings=RunnerSettings(threads=1, gpu_layers=0))
    assert [s.threads for s in placements(3, few)] == [1, 1, 1]
    assert placements(1, choice)[0].place.cpus == ()
    with pytest.raises(RequestError, match="there are 4 cores"):
        placements(99, choice)


def test_memory_is_checked_for_all_together(
    choice: LoadChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "cores", lambda: tuple(Core((i,)) for i in range(8)))
    settings = RunnerSettings(slots=4, context=1024)
    need = engines.estimate(choice.file, settings).total
    monkeypatch.setattr(engines, "free_memory", lambda: 3 * need + need // 2)
    require_room(choice, settings, placements(3, choice))
    with pytest.raises(OutOfMemoryError, match="What fits: --engines 3;") as caught:
        require_room(choice, settings, placements(4, choice))
    assert caught.value.exit_code == 4


def test_what_engines_may_be() -> None:
    assert [parse_count(text) for text in ("auto", "1", "12")] == ["auto", 1, 12]
    for text in ("0", "-1", "two", "1.5", "", "9999", "\u0663"):
        with pytest.raises(RequestError, match="--engines must be"):
            parse_count(text)
    assert spans([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


@pytest.mark.parametrize("kind", ["gguf_file", "onnx_folder"])
def test_slots_follow_rows_and_memory(kind: str, request: pytest.FixtureRequest) -> None:
    model, settings = read_model(request.getfixturevalue(kind)), RunnerSettings()
    for rows, free, slots in ((1000, 2**40, 16), (3, 2**40, 3), (1000, 0, 1)):
        assert default_slots(model, settings, rows, free) == slots
    # A quarter of the free memory is left alone.
    for slots in (4, 5):
        need = int(engines.estimate(model, RunnerSettings(slots=slots)).total / 0.75)
        found = [default_slots(model, settings, 1000, need + more) for more in (2, -2)]
        assert found == [slots, slots - 1]
    short = RunnerSettings(context=model.context_length // 2)
    assert default_slots(model, short, 1000, need + 2) >= 7


def on_every_core() -> None:
    """Tests that run beside others are kept to some of the cores."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


def test_a_killed_command_is_gone_on_with_by_another_number(
    batch: Batch, ingot: Any, tmp_path: Path
) -> None:
    if (psutil.cpu_count(logical=False) or 1) < 2:
        pytest.skip("needs two cores")
    write_rows(batch.source, [{"id": i, "prompt": f"{i} and"} for i in range(12)])
    words = ["--raw", "--slots", "4", "--max-tokens", "8"]
    held = {"preexec": on_every_core, "env": stopping.after_rows(tmp_path / "held", 4)}
    process = ingot.start(*batch.words(*words, "--engines", "2"), **held)
    stopping.wait_stopped(process)
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    process.kill()
    _, alive = psutil.wait_procs(children, 60)
    assert not alive  # engines end with the job
    end = batch.end(*words)
    assert (end["answered"], end["engines"], end["reused"]) == (12, [], 4)
    assert [record["id"] for record in batch.records] == list(range(12))
