"""Batches and files of a server, and the two threads that work on them: one runs batches on their
models, in the order of their creation; the other validates new inputs and writes the files of
batches that have ended.

Each step is in the record of its batch before it begins, so that a server that is killed goes on
where it was. Work that ended the server's process again and again is not begun once more: its batch
fails, and the others go on.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.batch.input.scan import InputScan
from app.batch.interrupt import Interrupts
from app.batch.journal.journal import Journal, journal_path
from app.batch.report.progress import Progress
from app.batch.runner import run_to_file
from app.batch.schedule.engines import JobPlan
from app.batch.schedule.pool_engine import Beginning, PoolEngine
from app.batch.schedule.run_engines import Hosted
from app.batch.settings import JobSettings, differences
from app.batch.spec import BatchSpec, OutputOptions
from app.openai.validation import JsonObject
from app.serve.batches.check import answered, check, opened, write_results
from app.serve.batches.folder import BATCHES, FILES
from app.serve.batches.store import (
    BATCH_INPUT,
    OUT,
    Batch,
    BatchCounts,
    BatchError,
    Batches,
    Ending,
    Files,
    new_batch_id,
    new_file_id,
)
from app.serve.errors import HttpError, LeftOut, UnknownModelError
from app.serve.pool import ModelPool
from runtimes.errors import IngotError, OutOfMemoryError, RequestError
from runtimes.models.modelfile import fingerprint
from runtimes.request import SamplingParams
from runtimes.untrusted import visible

logger = logging.getLogger(__name__)


# One batch on a loaded model: what `ingot batch` does, on the engine of the server.


class OtherModelError(RequestError):
    """A model of the same name answered the first rows of a batch."""


class Live(Progress):
    """The run of a batch's rows: what ends it. ``counted`` is told the rows that are completed, and
    those that failed."""

    def __init__(self, identity: str, counted: Callable[[str, int, int], None]) -> None:
        super().__init__()
        self.id, self._counted = identity, counted
        self.interrupts = Interrupts()
        self.gave_way = False  # to another model
        self.listeners.append(lambda now: counted(identity, now.done - now.failed, now.failed))

    def end(self) -> None:
        """End the rows that run."""
        self.interrupts.count = 2

    def give_way(self) -> None:
        """End the rows that run, since another model needs the room."""
        self.gave_way = True
        self.end()

    def note(self, text: str) -> None:
        """Log a message of the job."""
        logger.info("%s: %s", self.id, visible(text))

    def begin(self, found: InputScan) -> None:
        """Count the answers that the journal has already."""
        self._counted(self.id, found.cached, found.failed)


def run(
    folder: Path,
    batch: Batch,
    models: ModelPool,
    sampling: SamplingParams,
    live: Live,
    *,
    whole: bool = True,
) -> bool:
    """Answer what the journal lacks; whether all rows are done then. A journal with as many answers
    as there are rows is ``whole``, unless they were found to be those of other rows.

    Raises OtherModelError, and whatever the pool and the engine raise; what was answered is in the
    journal.
    """
    assert batch.model is not None
    found = answered(folder)
    if whole and found is not None and found.completed == batch.counts.total:
        return True  # what ended the server before came after the last row
    with (
        models.lease(batch.model, live.give_way) as served,
        opened(folder, batch, sampling) as source,
    ):
        choice, adapter, out = served.choice, served.adapter_file, folder / OUT
        settings = JobSettings(
            model=batch.model,
            runtime=choice.file.runtime,
            fingerprint=fingerprint(choice.file),
            sampling=sampling,
            kv_type=choice.settings.kv_type,
            rope=choice.settings.rope,
            adapters=None if adapter is None else {adapter.name: adapter.digest},
        )
        _check_model(out, settings)
        spec = BatchSpec(str(source.path), str(out), out=OutputOptions(format="openai"))
        beginning = Beginning(models.prefixes, served.engine, choice.settings)
        member = PoolEngine(served.engine, batch.model, adapter=served.adapter, beginning=beginning)
        plan = JobPlan(spec, source, choice, settings)
        return run_to_file(plan, out, live, Hosted([member], live.interrupts)).ended is None


def _check_model(out: Path, settings: JobSettings) -> None:
    with Journal(journal_path(out)) as journal:
        before = journal.settings if len(journal.entries) else None
    if before and (changed := differences(before, settings)):
        raise OtherModelError(
            f"{settings.model} is not what answered the first rows ({'; '.join(changed)}); the"
            " batch goes on when that is served again. Cancelling it gives what was answered"
        )


# Batches that cannot go on now: why, and when each is tried again.


FIRST_S, LONGEST_S = 1.0, 60.0
MOST_TRIES = 8  # without a row that was answered between them
_MOST_DOUBLED = 20  # times, after which every pause is the longest
# What the user of the server can change: a batch waits for it as long as it takes.
_LASTING = (HttpError, UnknownModelError, OtherModelError, OutOfMemoryError)


@dataclass(slots=True)
class _Wait:
    due: float
    problem: BatchError
    tries: int
    rows: int


@dataclass(slots=True)
class Waits:
    """Messages name files below ``data`` without that: clients read them. Thread-safe, where one
    thread at a time works on a batch."""

    data: Path
    _waits: dict[str, _Wait] = field(default_factory=dict)

    def begin(self, identity: str, error: Exception, rows: int) -> BatchError | None:
        """Let a batch with so many answered rows wait because of ``error``; longer each time. The
        error, if it is to be tried no more."""
        known = isinstance(error, (IngotError, HttpError))
        said = str(error).replace(f"{self.data}{os.sep}", "") if known else "an internal error"
        before = self._waits.get(identity)
        tries = 1 + (before.tries if before is not None and before.rows >= rows else 0)
        if not isinstance(error, _LASTING) and tries >= MOST_TRIES:
            self.end(identity)
            return BatchError.of("engine_error", said)
        pause = min(FIRST_S * 2 ** min(tries - 1, _MOST_DOUBLED), LONGEST_S)
        problem = BatchError.of("waiting", f"{said}. The batch goes on by itself when that is over")
        self._waits[identity] = _Wait(time.monotonic() + pause, problem, tries, rows)
        if before is None or before.problem != problem:
            why = visible(str(error)) if known else said
            logger.warning("%s waits: %s", identity, why, exc_info=None if known else error)
        return None

    def end(self, identity: str) -> None:
        """Clear a batch's backoff."""
        self._waits.pop(identity, None)

    def left(self, identity: str) -> float:
        """Seconds until it may be tried; 0 for one that may be tried now."""
        wait = self._waits.get(identity)
        return 0.0 if wait is None else max(0.0, wait.due - time.monotonic())

    def problem(self, identity: str) -> BatchError | None:
        """Return why a batch waits; None for one that does not."""
        wait = self._waits.get(identity)
        return None if wait is None else wait.problem


_CLOSE_S = 10.0
_STUCK_S = 1.0  # between two rounds of a thread of which one failed
# How many processes may end while they read an input, or do anything else for a batch without a row
# that was answered between them. A process that is killed by somebody counts too.
_MOST_DEATHS = {"validating": 2}
_DEATHS = 3


class BatchService:
    """Batches and files of a server, and the two threads that work on them from ``start`` to
    ``close``. Public methods may be called from any thread; they wait for the disk at most. Where
    nothing else is said, the lock of the batches guards what changes."""

    def __init__(self, data: Path, models: ModelPool, sampling: SamplingParams) -> None:
        """Take over ``data``, which is ``claimed``. ``sampling``: what a request's own parameters
        are on top of. Raises RequestError or OutOfMemoryError where it cannot be written."""
        self.files, self.models = Files(data / FILES), models
        self._batches = Batches(data / BATCHES)
        self._sampling, self.left_out = sampling, LeftOut()
        self._waits = Waits(data)
        self._live: Live | None = None
        self._stopping = False
        self._stuck: set[str] = set()  # threads whose last round failed
        self._lacking: set[str] = set()  # whose journal has not what it seems to have
        self._begun: dict[str, Batch] = {}  # what the threads are at
        for batch in self._batches.open():
            if batch.status != "validating":
                self._count(batch)
        self._threads = [
            threading.Thread(target=self._loop, args=(name, runs), name=name, daemon=True)
            for name, runs in (("ingot-batch-run", True), ("ingot-batch-files", False))
        ]

    def start(self) -> None:
        """Go on with what there is, and begin what comes."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin nothing more and end the rows that run; they are asked anew by the next server."""
        with self._batches.changed:
            self._stopping = True
            if self._live is not None:
                self._live.end()
            self._batches.changed.notify_all()

    def close(self) -> None:
        """``stop``, and wait for that."""
        self.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_CLOSE_S)
        for batch in list(self._begun.values()):  # what does not end in time has done no harm
            self._over(batch)

    def problem(self) -> str | None:
        """Describe a failure of the threads themselves; None while they can work."""
        begun = any(thread.ident is not None for thread in self._threads)
        if begun and not self._stopping and not all(one.is_alive() for one in self._threads):
            return "a thread of the batches has ended"
        return "the batches cannot go on; the server's log says why" if self._stuck else None

    def _live_of(self, batch: Batch) -> Live | None:
        """Return the run of a batch whose rows run."""
        live = self._live
        return live if live is not None and live.id == batch.id else None

    def _seen(self, batch: Batch) -> Batch:
        """Return the batch with the reason for which it waits."""
        problem = None if batch.ended else self._waits.problem(batch.id)
        return batch if problem is None else replace(batch, errors=(*batch.errors, problem))

    def create(
        self, input_file_id: str, endpoint: str, metadata: Mapping[str, str] | None
    ) -> Batch:
        """Add a batch. Raises HttpError for a file that is no input; RequestError or
        OutOfMemoryError where the disk refuses."""
        file = self.files.get(input_file_id)
        if file.purpose != BATCH_INPUT:
            said = f"{file.id} is a {file.purpose} file; the input of a batch is uploaded as"
            raise HttpError(400, "invalid_value", f"{said} {BATCH_INPUT}")
        batch = Batch(new_batch_id(), time.time(), endpoint, file.id, metadata)
        self._batches.add(batch, self.files.path(file.id))
        return batch

    def get(self, identity: str) -> Batch:
        """Return the batch as it is now. Raises HttpError for an id that no batch has."""
        return self._seen(self._batches.get(identity))

    def all(self) -> list[Batch]:
        """List the batches as they are now, the oldest first."""
        return list(map(self._seen, self._batches.all()))

    def running(self) -> list[tuple[Batch, Live | None]]:
        """List those that have not ended, the oldest first, each with the run of its rows."""
        return [(self._seen(one), self._live_of(one)) for one in self._batches.open()]

    def cancel(self, identity: str) -> Batch:
        """End the rows that run; what is done by then is in the output. Raises HttpError for one
        that has ended, and as ``create``."""

        def cancelled(batch: Batch) -> Batch:
            if batch.ended:
                said = f"the batch is {batch.status}, and cannot be cancelled any more"
                raise HttpError(400, "invalid_value", said)
            if batch.status == "cancelling" or batch.ending is not None:
                return batch
            return batch.now("cancelling")

        with self._batches.changed:
            batch = self._batches.change(identity, cancelled)
            if batch.status == "cancelling":
                self._waits.end(batch.id)
                if (live := self._live_of(batch)) is not None:
                    live.end()
        return self._seen(batch)

    def _count(self, batch: Batch) -> int:
        """Count the rows that its journal has, which may be damaged in any way."""
        found = None
        try:
            found = answered(self._batches.folder(batch))
        except Exception as error:
            logger.warning("%s: its journal: %s", batch.id, visible(str(error) or repr(error)))
        if found is None:
            return 0
        self._batches.count(batch.id, found.completed, found.failed)
        return found.completed

    def _loop(self, name: str, runs: bool) -> None:
        """One batch after the other, whatever becomes of any: a thread that ended would leave all
        others waiting for ever."""
        while not self._stopping:
            try:
                batch = self._next(runs)
                if batch is not None:
                    self._try(batch, runs)
                self._stuck.discard(name)
            except Exception:
                self._stuck.add(name)
                with contextlib.suppress(Exception):
                    logger.exception("%s failed, and goes on", name)
                with contextlib.suppress(Exception), self._batches.changed:
                    self._batches.changed.wait(_STUCK_S)

    def _next(self, runs: bool) -> Batch | None:
        """The batch that ``runs`` next, or is to be settled, once there is one; None at the end."""
        mine = self._to_run if runs else self._to_settle
        with self._batches.changed:
            while not self._stopping:
                pauses = []
                for batch in filter(mine, self._batches.open()):
                    if left := self._waits.left(batch.id):
                        pauses.append(left)
                        continue
                    if runs:
                        self._live = Live(batch.id, self._batches.count)
                    return batch
                self._batches.changed.wait(min(pauses, default=None))
        return None

    def _try(self, batch: Batch, runs: bool) -> None:
        stage = "finalizing" if batch.ending else batch.status
        works = {"in_progress": self._run, "validating": self._check}
        try:
            if self._begin(batch, stage):
                works.get(stage, self._settle)(batch)
        except Exception as error:
            if not self._stopping:
                self._put_off(batch, error)
        finally:
            if runs:  # the other thread may be at a batch that runs by now
                with self._batches.changed:
                    self._live = None
                    self._batches.changed.notify_all()
        self._over(batch)

    def _begin(self, batch: Batch, stage: str) -> bool:
        """Whether to do what is to be done; else the batch fails for what that did before."""
        self._over(batch)
        died = self._batches.begun(batch, stage)
        if died < _MOST_DEATHS.get(stage, _DEATHS):
            self._begun[batch.id] = batch
            return True
        doing = "its input was read" if stage == "validating" else f"it was {stage}"
        said = f"the server's process ended {died} times while {doing}; it is not tried again"
        logger.error("%s fails: %s", batch.id, said)
        self._fail(batch, BatchError.of("server_ended", said))
        return False

    def _over(self, batch: Batch) -> None:
        if self._begun.pop(batch.id, None) is not None:
            self._batches.over(batch)

    def _to_run(self, batch: Batch) -> bool:
        return batch.status == "in_progress" and batch.ending is None

    def _run(self, batch: Batch) -> None:
        live = self._live
        assert live is not None
        folder, whole = self._batches.folder(batch), batch.id not in self._lacking
        if run(folder, batch, self.models, self._sampling, live, whole=whole):
            self._end(batch, "completed")
        elif live.gave_way:
            raise HttpError(503, "model_busy", "another model needed the room of this one")

    def _end(self, batch: Batch, ending: Ending, *errors: BatchError) -> None:
        """Ask no more rows; name the files."""

        def ended(now: Batch) -> Batch:
            if now.ending is not None:
                return now
            as_ = "cancelled" if now.status == "cancelling" else ending
            now = now.now("finalizing") if as_ == "completed" else now
            return replace(
                now,
                ending=as_,
                errors=errors,
                output_file_id=new_file_id(),
                error_file_id=new_file_id(),
            )

        self._batches.change(batch.id, ended)

    def _to_settle(self, batch: Batch) -> bool:
        mine = batch.status in ("validating", "cancelling") or batch.ending is not None
        return mine and self._live_of(batch) is None

    def _settle(self, batch: Batch) -> None:
        if batch.ending is None:
            self._end(batch, "cancelled")
            batch = self._batches.get(batch.id)
        assert batch.ending is not None
        counts, usage = write_results(
            self._batches.folder(batch), batch, self._sampling, self.files
        )
        if batch.ending == "completed" and counts.completed + counts.failed < counts.total:
            if batch.id in self._lacking:
                raise IngotError("the journal has no answers to rows that were asked again")
            logger.warning("%s: the journal was damaged; the lost rows are asked again", batch.id)
            self._lacking.add(batch.id)
            self._batches.count(batch.id, counts.completed, counts.failed)
            self._batches.change(batch.id, lambda now: replace(now.now("in_progress"), ending=None))
            return
        changes: JsonObject = {"counts": counts, "usage": dict(usage) or None}
        if not counts.completed:
            changes["output_file_id"] = None
        if not counts.failed:
            changes["error_file_id"] = None
        self._finish(batch, lambda now: now.now(now.ending or "failed", **changes))

    def _check(self, batch: Batch) -> None:
        def ended() -> bool:
            return self._stopping or self._batches.get(batch.id).status != "validating"

        folder, names = self._batches.folder(batch), self.models.names()
        found = check(folder, batch, self._sampling, names, ended)
        self.left_out.log(batch.endpoint, sorted(found.ignored))

        def checked(now: Batch) -> Batch:
            if now.status != "validating" or self._stopping:
                return now
            if found.errors:
                return now.now("failed", model=found.model, errors=tuple(found.errors))
            return now.now("in_progress", model=found.model, counts=BatchCounts(found.rows, 0, 0))

        self._finish(batch, checked)

    def _finish(self, batch: Batch, change: Callable[[Batch], Batch]) -> None:
        after = self._batches.change(batch.id, change)
        self._waits.end(batch.id)
        rows = after.counts
        model = None if after.model is None else visible(after.model)
        logger.info(
            "%s for %s is %s: %d of %d rows, %d failed",
            *(after.id, model, after.status, rows.completed, rows.total, rows.failed),
        )
        if after.ended:
            self._lacking.discard(batch.id)
            if not after.kept:
                self._batches.clear(after)

    def _put_off(self, batch: Batch, error: Exception) -> None:
        """Let the batch go on later; fail it after too many tries without an answered row."""
        rows = self._count(batch)
        given_up = self._waits.begin(batch.id, error, rows)
        if given_up is None:
            return
        logger.error("%s fails: %s", batch.id, given_up.message)
        try:
            self._fail(batch, given_up)
        except Exception as why:  # such as a full disk: until then it is as it was
            self._waits.begin(batch.id, why, rows)

    def _fail(self, batch: Batch, error: BatchError) -> None:
        """End a batch because of ``error``; what was answered gets its files. Raises where the disk
        refuses."""
        now = self._batches.get(batch.id)
        if now.status == "validating" and now.ending is None:
            self._finish(now, lambda now: now.now("failed", errors=(error,)))
        elif now.ending is None:
            self._end(now, "failed", error)
        else:  # its files cannot be written: what is there stays
            changes: JsonObject = {"output_file_id": None, "error_file_id": None, "kept": True}
            errors = (*now.errors, error)
            self._finish(now, lambda now: now.now("failed", errors=errors, **changes))
