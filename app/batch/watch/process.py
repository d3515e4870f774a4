"""A job's command line (what it asks for, how it is shown and resumed) and its process: started so
that it outlives the one that started it, told apart from a process that got its number later, and
asked to end by the signals of the command. Also the process of a dry run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.batch.spec import WORDS, BatchSpec, spec_from
from app.cli.commands.batch import arguments_of, batch_spec
from app.exitcodes import ExitCode
from app.here import same_file
from runtimes.errors import RequestError
from runtimes.machine import processes
from runtimes.untrusted import Fields, JsonObject, visible

_MOST_SHOWN = 8000  # characters of a command that can be looked at before it is run


@dataclass(frozen=True, slots=True)
class BatchCommand:
    """An `ingot batch` with an output file. It runs in ``folder``, to which relative paths of
    ``spec`` are relative."""

    spec: BatchSpec
    folder: Path

    @property
    def arguments(self) -> list[str]:
        """Words after `ingot`."""
        return ["batch", *arguments_of(self.spec)]

    @property
    def text(self) -> str:
        """For a shell."""
        return shlex.join(["ingot", *self.arguments])

    def again(self) -> BatchCommand:
        """The command that resumes the job without dropping or disregarding its answers."""
        return replace(self, spec=replace(self.spec, force=False, fresh=False))

    def same_job(self, other: BatchCommand) -> bool:
        """Whether both resume the same job in the same way."""
        mine, theirs = ((os.path.realpath(one.folder), one.again().spec) for one in (self, other))
        return mine == theirs

    def asked(self) -> BatchSpec:
        """The job, with absolute paths of input, output and template."""
        spec, template = self.spec, self.spec.rows.template
        return replace(
            spec,
            input="-" if spec.input == "-" else str(self.folder / spec.input),
            output=str(self.folder / str(spec.output)),
            rows=replace(spec.rows, template=template and self.folder / template),
        )


def command_from(said: Fields) -> BatchCommand | None:
    """The command that a file says, whoever wrote it: its ``spec`` and ``folder``, or in files of
    earlier versions its command line; None where that is no job with an output file."""
    spec, words, folder = said.get("spec"), said.get("command"), said.get("folder")
    if isinstance(spec, dict):
        try:
            spec = spec_from(spec)
        except ValueError:
            return None
    elif isinstance(words, list) and all(isinstance(word, str) for word in words):
        spec = batch_spec(tuple(words[1:])) if words[:1] == ["batch"] else None
    if not isinstance(spec, BatchSpec) or not isinstance(folder, str):
        return None
    if spec.input in WORDS or spec.output in (None, "-") or spec.rows.dry_run:
        return None
    return BatchCommand(spec, Path(folder))


def noted_command(run: Fields | None) -> BatchCommand | None:
    """The command that a journal notes of a run; None of another command's run."""
    words = (run or {}).get("command")
    return command_from(run) if run is not None and words and words[0] == "batch" else None


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


def foreign(run: Fields, output: Path) -> Foreign:
    """The command that goes on with the job of ``output``, as its journal notes of a ``run``. Only
    options are taken over. Raises RequestError for anything but `ingot batch` with this output, and
    for more than anybody can read."""
    command = noted_command(run) if "spec" in run else None
    words = command.arguments if command else [w for w in run["command"] if w not in _TALK]
    text = visible(shlex.join(["ingot", *words]))
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    if len(text) > _MOST_SHOWN:
        raise RequestError(f"the journal's command is too long to be looked at: {shown}")
    command = command or noted_command(run)
    if command is None or command.spec.test or not all(map(_is_argument, words)):
        raise RequestError(
            f"the journal says that this job was started by `{shown}`, which is no `ingot batch`"
            " with an output file: it is not run"
        )
    spec = command.again().asked()
    if not same_file(Path(str(spec.output)), output):
        raise RequestError(
            f"the journal's command writes another file than {output}: `{shown}` is not run"
        )
    if spec.input == "-":
        raise RequestError(f"the job's input was piped in: pipe it into `{shown}` once more")
    return Foreign(BatchCommand(spec, command.folder), tuple(_warnings(spec)))


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


_TALK = ("--json", "--quiet")  # about the command's own output
_PLAIN = {"NO_COLOR": "1"}  # what is written to stderr is read
_TAIL = 16_384  # bytes of stderr that are looked at
_FRAME = " \t│╭╮╰╯─"


def start(command: BatchCommand, events: Path, errors: Path) -> JobProcess:
    """Start a job, its events (--json) and stderr in files, so that nothing is lost and nothing
    breaks when whoever reads them goes away. Raises OSError."""
    with events.open("ab") as out, errors.open("ab") as err:
        process = _child(command, *_TALK, outlives=True, stdout=out, stderr=err)
    return JobProcess(process.pid, processes.birth(process.pid) or 0.0, process)


def _child(command: BatchCommand, *options: str, **more: Any) -> processes.Child:
    """Start ``command`` with ``options``; Ctrl-C and a closed terminal are not for it. Raises
    OSError."""
    head, *rest = command.arguments
    return processes.Child(
        *("-m", "app", head, *options, *rest),
        environment=_PLAIN,
        cwd=command.folder,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **more,
    )


@dataclass(frozen=True, slots=True)
class JobProcess:
    """A process by its number and when it was born; ``process`` if this one started it."""

    pid: int
    born: float
    process: processes.Child | None = None

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        if self.process is not None:
            return self.process.poll() is None
        return processes.is_alive(self.pid, self.born)

    @property
    def code(self) -> int | None:
        """Exit code (negative: the signal that killed it); None while it runs, or when this
        process did not start it."""
        return None if self.process is None else self.process.poll()

    def ask_to_end(self) -> None:
        """Once: finish the running rows. Twice: stop at once. SIGTERM does what Ctrl-C does, and
        unlike SIGINT no shell has it ignored from birth."""
        if self.alive:
            os.kill(self.pid, signal.SIGTERM)


class DryRunProcess:
    """An `ingot batch --dry-run` at work."""

    def __init__(self, command: BatchCommand) -> None:
        """Start it. Raises OSError."""
        self._errors = tempfile.NamedTemporaryFile(prefix="ingot-dry-run-")  # noqa: SIM115
        self._process = _child(
            command, "--dry-run", "--json", stdout=subprocess.PIPE, stderr=self._errors
        )

    def found(self) -> JsonObject:
        """Wait for it; what it found, as its --json has it. Raises RequestError with what the
        command says."""
        with self._process, self._errors:
            out, _ = self._process.communicate()
            said = last_words(Path(self._errors.name))
        if self._process.returncode not in (ExitCode.DONE, ExitCode.ROWS_FAILED):
            raise RequestError(said or "the dry run was ended")
        found: JsonObject = json.loads(out)
        return found

    def cancel(self) -> None:
        """End it; ``found`` raises then."""
        self._process.kill()


def last_words(errors: Path) -> str:
    """Return the error that the command wrote to stderr, with all of its lines; else the last
    line, "" for none."""
    try:
        with errors.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line for framed in text.splitlines() if (line := framed.strip(_FRAME))]
    for at in reversed(range(len(lines))):
        if lines[at].startswith("ingot: "):
            return "\n".join([lines[at].removeprefix("ingot: "), *lines[at + 1 :]])
    return lines[-1] if lines else ""
