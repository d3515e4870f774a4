"""The command line of a job: what it asks for, how it is shown, and how it is gone on with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from app.batch.options import WORDS, InputOptions
from app.cli.batch_arguments import batch_values

# What would drop or disregard the answers that are there.
_ONCE = frozenset({"--fresh", "--force"})
# What is about the command's own output.
_TALK = ("--json", "--quiet")
_ELSEWHERE = frozenset({"template", "input_format", "limit", "strict", "dry_run"})
_READING = tuple(f.name for f in fields(InputOptions) if f.name not in _ELSEWHERE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line says of its job, as far as a screen needs it. Paths are absolute;
    ``input`` is None for standard input; ``reading`` has the other options that say how a row
    becomes a prompt, by their names in ``InputOptions``."""

    input: Path | None
    output: Path
    model: str | None = None
    template: Path | None = None
    input_format: str | None = None
    limit: int | None = None
    shard: str | None = None
    skip_failed: bool = False
    reading: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """``arguments`` are those after `ingot`, the first being ``batch``; relative paths in them are
    relative to ``folder``."""

    arguments: tuple[str, ...]
    folder: Path

    @property
    def text(self) -> str:
        """For a shell, without what is only for the program that started it."""
        return shlex.join(["ingot", *(a for a in self.arguments if a not in _TALK)])

    def events(self) -> list[str]:
        """The arguments of a run that tells events and nothing else."""
        head, *rest = (a for a in self.arguments if a not in _TALK)
        return [head, *_TALK, *rest]

    def again(self) -> Command:
        """The command that goes on with what this one has left."""
        return Command(tuple(a for a in self.arguments if a not in _ONCE), self.folder)

    def asked(self) -> Asked | None:
        """What it asks for; None when it is no job with an output file."""
        if not self.arguments or self.arguments[0] != "batch":
            return None
        found = batch_values(self.arguments[1:])
        output = found.get("output")
        if found.get("input") is None or output in (None, "-") or found.get("dry_run"):
            return None
        entry = found["input"]
        if entry in WORDS:
            return None
        template = found.get("template")
        limit = found.get("limit")
        return Asked(
            input=None if entry == "-" else self.folder / entry,
            output=self.folder / output,
            model=found.get("model"),
            template=None if template is None else self.folder / template,
            input_format=found.get("input_format"),
            limit=int(limit) if limit is not None and limit.isdecimal() else None,
            shard=found.get("shard"),
            skip_failed=bool(found.get("skip_failed")),
            reading=tuple((name, found[name]) for name in _READING if name in found),
        )


def batch_arguments(words: Sequence[str]) -> tuple[str, ...] | None:
    """The arguments after `ingot` in the command line of a process, when it is a job."""
    for at, word in enumerate(words[:6]):
        name = Path(word).name
        if name in ("ingot", "ingot.exe") or (word == "app" and at and words[at - 1] == "-m"):
            rest = [w for w in words[at + 1 :] if w not in ("-v", "--verbose")]
            return tuple(rest) if rest[:1] == ["batch"] else None
    return None
