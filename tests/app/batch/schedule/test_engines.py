"""Several engines on one job: where they run, whether they fit, and what a row may lose to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.batch.input.source import Row
from app.batch.interrupt import Interrupts
from app.batch.schedule import engines
from app.batch.schedule.engines import parse_count, placements, require_room, spans
from app.batch.schedule.job import Job, RequestDefaults
from app.batch.schedule.pending_rows import RowDispatcher
from app.batch.schedule.pool_engine import EngineState, PoolEngine
from app.models.planning import LoadChoice
from app.openai.answer import Answer
from app.openai.task import Task
from app.prompts import PromptStyle
from runtimes.errors import IngotError, OutOfMemoryError, RequestError
from runtimes.machine.cpu import Core
from runtimes.models.registry import read_model
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.worker.engine import WorkerEngine
from runtimes.worker.recovery import DeathLimit
from tests.app import stopping

PARAMS = SamplingParams(max_tokens=16, ignore_eos=True)
PROMPTS = [f"The number {i} is" for i in range(24)]


@pytest.fixture(scope="module")
def pair(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WorkerEngine]]:
    """Two engines; the second is not started again when it has died."""
    settings = RunnerSettings(slots=2, context=128, threads=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGOT_HOME", str(tmp_path_factory.mktemp("home")))
        with (
            WorkerEngine.load(gguf_file, settings) as first,
            WorkerEngine.load(gguf_file, settings, deaths=DeathLimit(1, 3600)) as second,
        ):
            yield [first, second]


def rows_of(prompts: list[str]) -> list[Row]:
    tasks = [Task((), (text,)) for text in prompts]
    return [Row(i, i + 1, i, task) for i, task in enumerate(tasks)]


def run(members: list[PoolEngine], tick: Any = lambda: None) -> tuple[Job, dict[int, str]]:
    """The job after its end, and each row's text: every row has one, and only one."""
    results: dict[int, str] = {}

    def deliver(row: Row, answer: Answer) -> None:
        assert answer.error is None
        assert row.index not in results
        results[row.index] = str(answer.response)

    job = Job(members, RequestDefaults(PARAMS, PromptStyle(raw=True), retries=0), deliver)
    assert job.run(iter(rows_of(PROMPTS)), Interrupts(), tick)
    assert sorted(results) == list(range(len(PROMPTS)))
    return job, results


def kill_once(engine: WorkerEngine, after: PoolEngine) -> Any:
    """Called at each tick: kills the engine's process as soon as ``after`` has finished a row."""
    killed = threading.Event()

    def tick() -> None:
        if not killed.is_set() and after.counts.answered and engine.pid is not None:
            killed.set()
            os.kill(engine.pid, signal.SIGKILL)

    return tick


def test_rows_survive_an_engine_and_read_the_same_on_any(pair: list[WorkerEngine]) -> None:
    _, alone = run([PoolEngine(pair[0])])
    members = [PoolEngine(pair[0], "one"), PoolEngine(pair[1], "two")]
    job, both = run(members)
    assert both == alone
    assert all(member.counts.answered >= member.engine.slots for member in members)
    assert (
        sum(member.counts.completion_tokens for member in members) == job.counts.completion_tokens
    )

    # A dead one is started again; its rows are asked once more, and none is lost.
    members = [PoolEngine(pair[0], "one"), PoolEngine(pair[1], "two")]
    job, after = run(members, kill_once(pair[0], members[0]))
    assert after == alone
    assert (job.counts.crashes, members[0].counts.crashes) == (1, 1)
    assert all(member.ready for member in members)


def test_an_engine_that_cannot_be_started_again_is_left_out(pair: list[WorkerEngine]) -> None:
    _, alone = run([PoolEngine(pair[0])])
    members = [PoolEngine(pair[0], "one"), PoolEngine(pair[1], "two")]
    _, rest = run(members, kill_once(pair[1], members[1]))
    assert rest == alone
    assert (members[1].state, members[1].counts.crashes) == (EngineState.LOST, 1)
    assert members[0].ready
    with pytest.raises(IngotError, match="is not started again"):
        run([PoolEngine(pair[1], "two")])


def test_rows_that_begin_alike_go_to_one_engine() -> None:
    kinds = [chr(ord("a") + i) * 80 for i in range(4)]
    rows = rows_of([f"{kind} {i}" for kind in kinds for i in range(6)])
    dispatcher = RowDispatcher(iter(rows), users=2)
    taken: list[list[Row]] = [[], []]
    while not dispatcher.exhausted:
        for user in (0, 1):
            item = dispatcher.take(user, most=8)
            if item is not None:
                taken[user].append(item)
    assert sorted(row.index for row in taken[0] + taken[1]) == list(range(24))
    alike = [{row.task.turns[0][0] for row in some} for some in taken]
    assert alike in ([{"a", "c"}, {"b", "d"}], [{"b", "d"}, {"a", "c"}])


def test_one_that_has_nothing_left_takes_from_the_others() -> None:
    dispatcher = RowDispatcher(iter(rows_of(["the same " * 20] * 10)), users=3)
    assert dispatcher.take(0, most=16) is not None  # it has them all now
    assert [dispatcher.take(user, most=16) is not None for user in (1, 2, 1)] == [True] * 3
    assert [dispatcher.take(2, most=16) is not None for _ in range(7)] == [True] * 6 + [False]
    assert dispatcher.exhausted


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


def test_the_job_alone_counts_deaths(choice: LoadChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of a job is started again as often as it dies: the job ends it."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(engines, "load_engine", lambda *_, **named: given.update(named))
    engines.load_engines(choice, RunnerSettings(), [engines.EnginePlacement("one")])
    assert given["deaths"].deaths > 10**6


def test_what_engines_may_be() -> None:
    assert [parse_count(text) for text in ("auto", "1", "12")] == ["auto", 1, 12]
    for text in ("0", "-1", "two", "1.5", "", "9999", "\u0663"):
        with pytest.raises(RequestError, match="--engines must be"):
            parse_count(text)
    assert spans([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def on_every_core() -> None:
    """Tests that run beside others are kept to some of the cores."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


def test_a_killed_command_is_gone_on_with_by_another_number(
    ingot: Any, gguf_file: Path, tmp_path: Path
) -> None:
    counted = "from runtimes.machine.cpu import cores; print(len(cores()))"
    found = subprocess.run(
        [sys.executable, "-c", counted], preexec_fn=on_every_core, capture_output=True, check=True
    )
    if int(found.stdout) < 2:
        pytest.skip("needs two cores")
    rows, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows.write_text("".join(json.dumps({"id": i, "prompt": f"{i} and"}) + "\n" for i in range(40)))
    command = ["batch", rows, out, "-m", gguf_file, "--raw", "--slots", "4"]
    command += ["--max-tokens", "24"]
    held = {"preexec": on_every_core, "env": stopping.after_rows(tmp_path / "held", 8)}
    process = ingot.start(*command, "--engines", "2", "--json", **held)
    stopping.wait_stopped(process)
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    process.kill()
    _, alive = psutil.wait_procs(children, 60)
    assert not alive  # engines end with the job
    done = ingot(*command, "--json")
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["answered"], end["engines"]) == (40, [])
    assert end["reused"] == 8
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == list(range(40))
