"""The command line of a job: what it asks for, how it is shown, and how it is resumed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.batch.spec import WORDS, BatchSpec
from app.cli.batch_arguments import arguments_of, batch_spec

# What would drop or disregard the answers that are there.
_ONCE = frozenset({"--fresh", "--force"})
# What is about the command's own output.
_TALK = ("--json", "--quiet")


@dataclass(frozen=True, slots=True)
class Command:
    """``arguments`` are those after `ingot`, the first being ``batch``; relative paths in them are
    relative to ``folder``. ``spec`` is what they say, where that is known already."""

    arguments: tuple[str, ...]
    folder: Path
    spec: BatchSpec | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """For a shell, without what is only for the program that started it."""
        return shlex.join(["ingot", *(a for a in self.arguments if a not in _TALK)])

    def events(self) -> list[str]:
        """The arguments of a run that tells events and nothing else."""
        head, *rest = (a for a in self.arguments if a not in _TALK)
        return [head, *_TALK, *rest]

    def again(self) -> Command:
        """The command that resumes what this one has left."""
        return Command(tuple(a for a in self.arguments if a not in _ONCE), self.folder)

    def asked(self) -> BatchSpec | None:
        """What it asks for, with absolute paths of input, output and template; None when it is no
        job with an output file."""
        if self.arguments[:1] != ("batch",):
            return None
        spec = self.spec or batch_spec(self.arguments[1:])
        if spec is None or spec.input in WORDS or spec.output in (None, "-") or spec.rows.dry_run:
            return None
        template = spec.rows.template
        return replace(
            spec,
            input="-" if spec.input == "-" else str(self.folder / spec.input),
            output=str(self.folder / str(spec.output)),
            rows=replace(spec.rows, template=template and self.folder / template),
        )


def command_of(spec: BatchSpec, folder: Path) -> Command:
    """The command line of a job, started in ``folder``."""
    return Command(("batch", *arguments_of(spec)), folder, spec)


def batch_arguments(words: Sequence[str]) -> tuple[str, ...] | None:
    """The arguments after `ingot` in the command line of a process, when it is a job."""
    for at, word in enumerate(words[:6]):
        name = Path(word).name
        if name in ("ingot", "ingot.exe") or (word == "app" and at and words[at - 1] == "-m"):
            rest = [w for w in words[at + 1 :] if w not in ("-v", "--verbose")]
            return tuple(rest) if rest[:1] == ["batch"] else None
    return None
