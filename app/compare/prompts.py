"""A file of prompts to several files, one after another: each a batch job of its own, whose journal
is kept, so that a run that was killed loses no answer and a file that is added later asks only
itself.

::

    STATE/compare/ANSWERS/answers.jsonl     one file's answers to one file of prompts, and a journal
    STATE/compare/REPORT/results.json       what the last run of a comparison found
    STATE/compare/REPORT/votes.jsonl        what the user preferred

ANSWERS and REPORT are hashes of the paths. The oldest go when there are too many.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.batch.spec import BatchSpec, InputOptions, OutputOptions
from app.here import real, whole
from app.models.catalog import entry_of
from app.models.entries import ModelEntry
from app.models.resolve import model_file
from app.options import ModelOptions, SamplingOptions
from runtimes.errors import RequestError
from runtimes.paths import state_dir

_MOST = 60


@dataclass(frozen=True, slots=True)
class PromptsJob:
    """Two files at least, the first of which the others are compared with."""

    entries: tuple[ModelEntry, ...]
    prompts: Path
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    system: str | None = None
    field: str | None = None
    limit: int | None = None
    slots: int | None = None

    def answers(self, entry: ModelEntry) -> Path:
        """Where a file's answers are kept; their journal is beside it."""
        return _folder(self.prompts, [entry.path]) / "answers.jsonl"

    @property
    def folder(self) -> Path:
        """What belongs to all of it."""
        return _folder(self.prompts, [entry.path for entry in self.entries])

    def rows(self) -> InputOptions:
        """How the prompts are read."""
        return InputOptions(field=self.field, limit=self.limit)

    def spec(self, entry: ModelEntry, *, fresh: bool = False) -> BatchSpec:
        """One file's batch job. With ``force`` an answer is asked for anew when what decides it has
        changed, and only then."""
        return BatchSpec(
            str(self.prompts),
            str(self.answers(entry)),
            str(entry.path),
            system=self.system,
            slots=self.slots,
            force=not fresh,
            fresh=fresh,
            sampling=self.sampling,
            rows=self.rows(),
            out=OutputOptions(format="jsonl"),
        )


def entries_of(models: Sequence[tuple[str, ModelOptions]]) -> tuple[ModelEntry, ...]:
    """The files that MODELs mean. Raises ModelError or RequestError, also for fewer than two, and
    for a file that is named twice."""
    found: dict[Path, ModelEntry] = {}
    for model, options in models:
        path = model_file(model, options).path
        if real(path) in found:
            raise RequestError(f"{path} is named twice; a file agrees with itself")
        found[real(path)] = entry_of(path)
    if len(found) < 2:
        raise RequestError("a comparison needs two files at least; name another MODEL or --recipe")
    return tuple(found.values())


def labels_of(entries: Sequence[ModelEntry]) -> list[str]:
    """What people call the files; those that are called alike have their paths."""
    labels = [entry.label for entry in entries]
    return [
        label if labels.count(label) == 1 else str(entry.path)
        for label, entry in zip(labels, entries, strict=True)
    ]


def check_prompts(path: Path) -> Path:
    """The absolute path. Raises RequestError for what cannot be read several times."""
    if not path.exists():
        raise RequestError(f"--prompts: {path}: no such file or folder")
    if not (path.is_file() or path.is_dir()):
        raise RequestError(f"--prompts: {path} cannot be read several times; write it to a file")
    return whole(path)


def run_prompts(
    job: PromptsJob, ask: Callable[[BatchSpec], int], begin: Callable[[int], None], *, fresh: bool
) -> list[int]:
    """Have each file answer; the exit codes of their jobs, those of the first ones if one was
    interrupted. ``ask`` runs a batch job, ``begin`` is told which file comes."""
    from app.exitcodes import ExitCode

    codes = []
    for number, entry in enumerate(job.entries):
        begin(number)
        job.answers(entry).parent.mkdir(parents=True, exist_ok=True)
        codes.append(ask(job.spec(entry, fresh=fresh)))
        if codes[-1] == ExitCode.INTERRUPTED:
            break
    job.folder.mkdir(parents=True, exist_ok=True)
    for kept in (job.folder, *(job.answers(entry).parent for entry in job.entries)):
        os.utime(kept)
    _forget()
    return codes


def _forget() -> None:
    folders = sorted(_root().iterdir(), key=lambda folder: -folder.stat().st_mtime)
    for old in folders[_MOST:]:
        shutil.rmtree(old, ignore_errors=True)


def _root() -> Path:
    return state_dir() / "compare"


def _folder(prompts: Path, files: Sequence[Path]) -> Path:
    names = [os.fspath(whole(prompts)), *(os.fspath(real(file)) for file in files)]
    return _root() / hashlib.sha256(json.dumps(names).encode()).hexdigest()[:20]
