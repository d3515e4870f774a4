"""The command line of a job: what it asks for, how it is shown, and how it is resumed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.batch.spec import WORDS, BatchSpec
from app.cli.batch_arguments import arguments_of, batch_spec
from app.here import same_file
from runtimes.errors import RequestError
from runtimes.untrusted import visible

# What would drop or disregard the answers that are there.
_ONCE = frozenset({"--fresh", "--force"})
# What is about the command's own output.
_TALK = ("--json", "--quiet")
_MOST_SHOWN = 8000  # characters of a command that can be looked at before it is run


@dataclass(frozen=True, slots=True)
class BatchCommand:
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

    def again(self) -> BatchCommand:
        """The command that resumes what this one has left."""
        return BatchCommand(tuple(a for a in self.arguments if a not in _ONCE), self.folder)

    def same_job(self, other: BatchCommand) -> bool:
        """Whether both resume the same job in the same way."""
        mine, theirs = (
            (os.path.realpath(one.folder), [a for a in one.again().arguments if a not in _TALK])
            for one in (self, other)
        )
        return mine == theirs

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


def command_from(arguments: object, folder: object) -> BatchCommand | None:
    """The command that a file says, whoever wrote it; None where that is none."""
    if not isinstance(arguments, (list, tuple)) or not isinstance(folder, str):
        return None
    if not all(isinstance(one, str) for one in arguments):
        return None
    return BatchCommand(tuple(arguments), Path(folder))


@dataclass(frozen=True, slots=True)
class Foreign:
    """A command that a journal says, which anybody may have written: run only when a user has seen
    it and agreed. ``warnings`` say what it does beside answering rows."""

    command: BatchCommand
    warnings: tuple[str, ...]

    @property
    def shown(self) -> str:
        """All of it, for a question."""
        text = visible(f"{self.command.text}\nin {self.command.folder}", lines=True)
        return "\n\n".join([*map(visible, self.warnings), text])


def foreign(command: BatchCommand, output: Path) -> Foreign:
    """The command that goes on with the job of ``output``, as ``command`` says. Only what it asks
    for as data is taken over. Raises RequestError for anything but `ingot batch` with this output,
    and for more than anybody can read."""
    text = visible(command.text)
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    if len(text) > _MOST_SHOWN:
        raise RequestError(f"the journal's command is too long to be looked at: {shown}")
    spec = command.asked() if all(map(_is_argument, command.arguments)) else None
    if spec is None or spec.test:
        raise RequestError(
            f"the journal says that this job was started by `{shown}`, which is no `ingot batch`"
            " with an output file: it is not run"
        )
    if not same_file(Path(str(spec.output)), output):
        raise RequestError(
            f"the journal's command writes another file than {output}: `{shown}` is not run"
        )
    if spec.input == "-":
        raise RequestError(f"the job's input was piped in: pipe it into `{shown}` once more")
    asked = command_of(replace(spec, force=False, fresh=False), command.folder)
    return Foreign(BatchCommand(asked.arguments, asked.folder), tuple(_warnings(spec)))


def _is_argument(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _warnings(spec: BatchSpec) -> Iterator[str]:
    if spec.running.ray is not None:
        yield f"It uses the Ray cluster {spec.running.ray}, which can run any program here."
    if spec.out.report is not None:
        yield f"It also writes the file {spec.out.report}, over what is there."


def command_of(spec: BatchSpec, folder: Path) -> BatchCommand:
    """The command line of a job, started in ``folder``."""
    return BatchCommand(("batch", *arguments_of(spec)), folder, spec)


def batch_arguments(words: Sequence[str]) -> tuple[str, ...] | None:
    """The arguments after `ingot` in the command line of a process, when it is a job."""
    for at, word in enumerate(words[:6]):
        name = Path(word).name
        if name in ("ingot", "ingot.exe") or (word == "app" and at and words[at - 1] == "-m"):
            rest = [w for w in words[at + 1 :] if w not in ("-v", "--verbose")]
            return tuple(rest) if rest[:1] == ["batch"] else None
    return None
