"""What becomes of batches, in two threads: one asks the models, for one batch after the other in
the order of their creation; the other does what needs no model: it reads inputs that are new, and
writes the files of batches that have ended.

What a batch is to become is in its record before it is begun, so that a server that is killed goes
on where it was.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from app.serve.batches.check import check
from app.serve.batches.files import Files, new_file_id
from app.serve.batches.record import Batch, BatchError, Counts, Ending
from app.serve.batches.results import answered, write_results
from app.serve.batches.run import Live, run
from app.serve.batches.store import Batches
from app.serve.batches.waits import Waits
from app.serve.errors import HttpError
from app.serve.pool import ModelPool
from runtimes.errors import IngotError
from runtimes.request import SamplingParams

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0


class Work:
    """The threads, from ``start`` to ``close``. Where nothing else is said, the lock of ``batches``
    guards what changes."""

    def __init__(
        self, batches: Batches, files: Files, models: ModelPool, sampling: SamplingParams
    ) -> None:
        """``sampling`` is what a request's own parameters are on top of."""
        self._batches, self._files, self._models = batches, files, models
        self._sampling = sampling
        self._waits = Waits()
        self._live: Live | None = None
        self._known: dict[str, Counts] = {}  # of batches that were begun, and do not run
        self._stopping = False
        for batch in batches.all():
            if not batch.ended and batch.status != "validating":
                self._count(batch)
        self._threads = [
            threading.Thread(target=self._loop, args=parts, name=name, daemon=True)
            for name, parts in (
                ("ingot-batch-run", (self._to_run, self._run)),
                ("ingot-batch-files", (self._to_settle, self._settle)),
            )
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

    def live(self, batch: Batch) -> Live | None:
        """Of a batch whose rows run."""
        live = self._live
        return live if live is not None and live.id == batch.id else None

    def seen(self, batch: Batch) -> Batch:
        """With what changes too often to be written, and why it waits."""
        if batch.ended:
            return batch
        live, known = self.live(batch), self._known.get(batch.id)
        if live is not None:
            return replace(batch, counts=live.counts)
        if known is not None:
            batch = replace(batch, counts=known)
        problem = self._waits.problem(batch.id)
        return batch if problem is None else replace(batch, errors=(*batch.errors, problem))

    def cancelled(self, batch: Batch) -> None:
        """End its rows now, or its wait; with the lock held."""
        self._waits.end(batch.id)
        live = self.live(batch)
        if live is not None:
            live.end()

    def _count(self, batch: Batch) -> int:
        """Count the rows that its journal has."""
        found = None
        try:
            found = answered(self._batches.folder(batch))
        except IngotError as error:
            logger.warning("%s", error)
        if found is None:
            return 0
        self._known[batch.id] = replace(found, total=batch.counts.total)
        return found.completed

    def _loop(self, pick: Callable[[], Batch | None], work: Callable[[Batch], None]) -> None:
        while True:
            with self._batches.changed:
                while not self._stopping and (batch := pick()) is None:
                    self._batches.changed.wait(self._waits.pause())
                if self._stopping or batch is None:
                    return
            try:
                work(batch)
            except Exception as error:
                if not self._stopping:
                    self._put_off(batch, error)

    def _to_run(self) -> Batch | None:
        for batch in self._batches.all():
            ready = batch.status == "in_progress" and batch.ending is None
            if ready and self._waits.over(batch.id):
                counts = self._known.get(batch.id, batch.counts)
                self._live = Live(batch.id, counts)
                return batch
        return None

    def _run(self, batch: Batch) -> None:
        live = self._live
        assert live is not None
        try:
            done = run(self._batches.folder(batch), batch, self._models, self._sampling, live)
            if done:
                self._end(batch, "completed")
            elif live.gave_way:
                raise HttpError(503, "model_busy", "another model needed the room of this one")
        finally:
            with self._batches.changed:
                self._known[batch.id] = live.counts
                self._live = None
                self._batches.changed.notify_all()

    def _end(self, batch: Batch, ending: Ending, *errors: BatchError) -> None:
        """No row is asked any more; the files get their names."""

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

    def _to_settle(self) -> Batch | None:
        for batch in self._batches.all():
            mine = batch.status in ("validating", "cancelling") or batch.ending is not None
            elsewhere = batch.ended or self.live(batch) is not None
            if mine and not elsewhere and self._waits.over(batch.id):
                return batch
        return None

    def _settle(self, batch: Batch) -> None:
        if batch.status == "validating":
            self._check(batch)
            return
        if batch.ending is None:
            self._end(batch, "cancelled")
            batch = self._batches.get(batch.id)
        assert batch.ending is not None
        counts, usage = write_results(
            self._batches.folder(batch), batch, self._sampling, self._files
        )
        if batch.ending == "completed" and counts.completed + counts.failed < counts.total:
            logger.warning("%s: the journal was damaged; the lost rows are asked again", batch.id)
            self._known[batch.id] = counts
            self._batches.change(batch.id, lambda now: replace(now.now("in_progress"), ending=None))
            return
        changes: dict[str, Any] = {"counts": counts, "usage": dict(usage) or None}
        if not counts.completed:
            changes["output_file_id"] = None
        if not counts.failed:
            changes["error_file_id"] = None
        self._finish(batch, lambda now: now.now(now.ending or "failed", **changes))

    def _check(self, batch: Batch) -> None:
        def ended() -> bool:
            return self._stopping or self._batches.get(batch.id).status != "validating"

        folder, names = self._batches.folder(batch), self._models.names()
        found = check(folder, batch, self._sampling, names, ended)

        def checked(now: Batch) -> Batch:
            if now.status != "validating" or self._stopping:
                return now
            if found.errors:
                return now.now("failed", model=found.model, errors=found.errors)
            return now.now("in_progress", model=found.model, counts=Counts(found.rows))

        self._finish(batch, checked)

    def _finish(self, batch: Batch, change: Callable[[Batch], Batch]) -> None:
        after = self._batches.change(batch.id, change)
        self._waits.end(batch.id)
        rows = after.counts
        logger.info(
            "%s for %s is %s: %d of %d rows, %d failed",
            *(after.id, after.model, after.status, rows.completed, rows.total, rows.failed),
        )
        if after.ended:
            self._known.pop(batch.id, None)
            self._batches.clear(after)

    def _put_off(self, batch: Batch, error: Exception) -> None:
        """It goes on later; or it fails, where nothing has come of that so often."""
        given_up = self._waits.begin(batch.id, error, self._count(batch))
        if given_up is None:
            return
        logger.error("%s fails: %s", batch.id, given_up.message)
        now = self._batches.get(batch.id)
        if now.ending is None:
            self._end(now, "failed", given_up)
        else:  # its files cannot be written: what is there stays
            changes = {"output_file_id": None, "error_file_id": None, "kept": True}
            self._batches.change(
                batch.id, lambda now: now.now("failed", errors=(*now.errors, given_up), **changes)
            )
