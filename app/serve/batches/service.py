"""Batches and files of a server, as its routes ask for them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.batch.report.figures import Snapshot
from app.serve.batches.data import BATCHES, FILES
from app.serve.batches.files import INPUT, Files
from app.serve.batches.record import Batch, BatchCounts, Status
from app.serve.batches.store import Batches, new_batch_id
from app.serve.batches.work import Work
from app.serve.errors import HttpError
from app.serve.pool import ModelPool
from runtimes.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Running:
    """A batch that has not ended, for those who watch the server."""

    id: str
    model: str | None
    status: Status
    counts: BatchCounts
    waits: str | None = None  # why it does not go on
    live: bool = False  # its rows run
    snapshot: Snapshot | None = None  # of these


class BatchService:
    """Methods may be called from any thread; they wait for the disk at most."""

    def __init__(self, data: Path, models: ModelPool, sampling: SamplingParams) -> None:
        """What is in ``data``, which is ``claimed``. ``sampling`` is what a request's own
        parameters are on top of. Raises RequestError or OutOfMemoryError where it cannot be
        written."""
        self.files, self.models = Files(data / FILES), models
        self._batches = Batches(data / BATCHES)
        self._work = Work(data, self._batches, self.files, models, sampling)
        self.problem = self._work.problem
        self.start, self.stop, self.close = self._work.start, self._work.stop, self._work.close

    def create(
        self, input_file_id: str, endpoint: str, metadata: Mapping[str, str] | None
    ) -> Batch:
        """A new batch. Raises HttpError for a file that is no input; RequestError or
        OutOfMemoryError where the disk refuses."""
        file = self.files.get(input_file_id)
        if file.purpose != INPUT:
            said = f"{file.id} is a {file.purpose} file; the input of a batch is uploaded as"
            raise HttpError(400, "invalid_value", f"{said} {INPUT}")
        batch = Batch(new_batch_id(), time.time(), endpoint, file.id, metadata)
        self._batches.add(batch, self.files.path(file.id))
        return batch

    def get(self, identity: str) -> Batch:
        """As it is now. Raises HttpError for an id that no batch has."""
        return self._work.seen(self._batches.get(identity))

    def all(self) -> list[Batch]:
        """As they are now, the oldest first."""
        return [self._work.seen(batch) for batch in self._batches.all()]

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
                self._work.cancelled(batch)
        return self._work.seen(batch)

    def running(self) -> list[Running]:
        """Those that have not ended, the oldest first."""
        found = []
        for batch in map(self._work.seen, self._batches.open()):
            live = self._work.live(batch)
            waits = batch.errors[0].message if batch.errors else None
            snapshot = None if live is None else live.snapshot
            told = batch.id, batch.model, batch.status, batch.counts, waits
            found.append(Running(*told, live=live is not None, snapshot=snapshot))
        return found

    def ended_rows(self) -> Mapping[tuple[str, str], int]:
        """Rows of the batches that have ended, by the model that was asked for and the status."""
        with self._batches.changed:
            return self._batches.rows.copy()
