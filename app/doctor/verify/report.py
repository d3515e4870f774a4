"""What a user can send: one JSON and one Markdown file, without what says who or where they are."""

import contextlib
import getpass
import json
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from app.bench.harness import rounded
from app.doctor.report import rows
from app.doctor.verify.lines import Line, counts
from app.doctor.verify.run import Verification
from quantize.disk import write_atomically
from runtimes.errors import RequestError

# Two folders or more, or a folder and a file, from a root on.
_PATH = re.compile(
    r"(?<![\w.])(?:[A-Za-z]:)?(?:[\\/][^\s\\/:;,'\"()|<>]+)+[\\/]([^\s\\/:;,'\"()|<>]*)"
)


class Files:
    """The two files of one report; they are there from the start, so that nothing can hinder the
    end."""

    def __init__(self, folder: Path, day: str) -> None:
        """New names in ``folder``, which is made. Raises RequestError where nothing can be
        written."""
        number = 1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            while True:
                stem = f"ingot-verify-{day}" + (f"-{number}" if number > 1 else "")
                self.json, self.markdown = folder / f"{stem}.json", folder / f"{stem}.md"
                number += 1
                if self.markdown.exists():
                    continue
                with contextlib.suppress(FileExistsError):
                    self.json.touch(exist_ok=False)
                    break
        except OSError as error:
            raise RequestError(
                f"--out: {folder} cannot be written to: {error.strerror}; name another folder"
            ) from error

    def write(self, run: Verification) -> None:
        """Both, as things are now."""
        data = as_json(run)
        write_atomically(self.json, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        write_atomically(self.markdown, as_markdown(run, data))


def as_json(run: Verification) -> dict[str, Any]:
    """The report for programs."""
    try:
        ingot = version("ingot")
    except PackageNotFoundError:
        ingot = "not installed"
    data: dict[str, Any] = {
        "ingot": ingot,
        "date": f"{run.began:%Y-%m-%d %H:%M} UTC",
        "minutes_allowed": run.minutes,
        "seconds": run.seconds,
        "interrupted": run.interrupted,
        "verdicts": counts(run.lines),
        "others_share_before": run.others,
        "machine": run.machine.as_json() if run.machine else None,
        "lines": [_line(line) for line in run.lines],
    }
    cleaned: dict[str, Any] = Cleaner().clean(rounded(data))
    return cleaned


def _line(line: Line) -> dict[str, Any]:
    subject, found = line.subject, line.found
    return {
        "check": line.check,
        "runtime": subject.runtime,
        "device": subject.device,
        "file": subject.file,
        "verdict": found.verdict,
        "found": found.said,
        "seconds": line.seconds,
        "figures": found.figures,
    }


def as_markdown(run: Verification, data: Mapping[str, Any]) -> str:
    """The report for people, from what ``as_json`` has made."""
    told = ", ".join(f"{count} {name}" for name, count in counts(run.lines).items())
    ended = "; it was interrupted" if run.interrupted else ""
    lines = [
        f"# Ingot {data['ingot']} on this machine",
        "",
        f"{data['date']}, {run.seconds:.0f} s of {run.minutes:g} minutes{ended}: {told}.",
        "",
        *_table(("check", "runtime", "device", "file", "verdict", "found", "s")),
    ]
    for line in data["lines"]:
        cells = [line[name] for name in ("check", "runtime", "device", "file", "verdict", "found")]
        lines.append(_row([*cells, f"{line['seconds']:.1f}"]))
    if run.machine:
        cleaner = Cleaner()
        lines += ["", "## Machine", "", *_table(("what", "found"))]
        lines += [_row([name, cleaner.clean(found)]) for name, found in rows(run.machine)]
    return "\n".join(lines) + "\n"


def _table(head: tuple[str, ...]) -> list[str]:
    return [_row(head), _row(["---"] * len(head))]


def _row(cells: "list[str] | tuple[str, ...]") -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


class Cleaner:
    """Takes folders, the user's name and the machine's out of texts."""

    def __init__(self) -> None:
        folders = {str(Path.home()), sys.prefix, tempfile.gettempdir()}
        with contextlib.suppress(OSError):
            folders.add(str(Path.cwd()))
        # The longest first: one may be in another.
        self._folders = sorted((one for one in folders if len(one) > 1), key=len, reverse=True)
        names = {socket.gethostname()}
        with contextlib.suppress(OSError, KeyError, ImportError):
            names.add(getpass.getuser())
        words = "|".join(re.escape(name) for name in names if name)
        self._names = re.compile(rf"(?<!\w)(?:{words})(?!\w)" if words else r"(?!)")

    def clean(self, value: Any) -> Any:
        """The same with every text in it cleaned."""
        if isinstance(value, Mapping):
            return {key: self.clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(item) for item in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        for folder in self._folders:
            text = text.replace(folder, "...")
        return self._names.sub("...", _PATH.sub(r".../\1", text))
