"""One batch on a loaded model: what `ingot batch` does, on the engine of the server."""

import logging
from dataclasses import replace
from pathlib import Path

from app.batch.input.scan import InputScan
from app.batch.interrupt import Interrupts
from app.batch.journal.journal import Journal, journal_path
from app.batch.plan import JobPlan
from app.batch.report.figures import Snapshot
from app.batch.report.progress import Progress
from app.batch.runner import run_to_file
from app.batch.schedule.beginning import Beginning
from app.batch.schedule.pool_engine import PoolEngine
from app.batch.schedule.run_engines import Hosted
from app.batch.settings import JobSettings, differences
from app.batch.spec import BatchSpec, OutputOptions
from app.serve.batches.check import opened
from app.serve.batches.record import Batch, BatchCounts
from app.serve.batches.results import OUT, answered
from app.serve.pool import ModelPool
from runtimes.errors import RequestError
from runtimes.models.modelfile import fingerprint
from runtimes.request import SamplingParams
from runtimes.untrusted import visible

logger = logging.getLogger(__name__)


class OtherModelError(RequestError):
    """A model of the same name answered the first rows of a batch."""


class Live(Progress):
    """A batch that runs: how far it is, and what ends it."""

    def __init__(self, identity: str, counts: BatchCounts) -> None:
        """``counts`` as they are known before the run has looked."""
        super().__init__()
        self.id, self.counts = identity, counts
        self.snapshot: Snapshot | None = None
        self.interrupts = Interrupts()
        self.gave_way = False  # to another model
        self.listeners.append(self._take)

    def end(self) -> None:
        """End the rows that run."""
        self.interrupts.count = 2

    def give_way(self) -> None:
        """The same, since another model needs the room."""
        self.gave_way = True
        self.end()

    def note(self, text: str) -> None:
        """What the command would show."""
        logger.info("%s: %s", self.id, visible(text))

    def begin(self, found: InputScan) -> None:
        """Before the first row is asked."""
        self._count(found.cached, found.failed)

    def _take(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._count(snapshot.done - snapshot.failed, snapshot.failed)

    def _count(self, completed: int, failed: int) -> None:
        self.counts = replace(self.counts, completed=completed, failed=failed)


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
        changed = (
            journal.settings and len(journal.entries) and differences(journal.settings, settings)
        )
    if changed:
        raise OtherModelError(
            f"{settings.model} is not what answered the first rows ({'; '.join(changed)}); the"
            " batch goes on when that is served again. Cancelling it gives what was answered"
        )
