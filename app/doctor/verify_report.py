"""The report of a verification: its lines in a terminal, and one JSON and one Markdown file to
send, without what says who or where the user is."""

import contextlib
import getpass
import itertools
import re
import socket
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.bench.frame import rounded
from app.doctor.checks import CheckLine, counts
from app.doctor.report import rows
from app.doctor.verify import Verification
from app.here import here, numbered, real
from quantize.disk import write_atomically
from runtimes.errors import RequestError
from runtimes.machine.installed import versions
from runtimes.output import json_text, markdown
from runtimes.paths import cache_dir, data_dir, state_dir
from runtimes.untrusted import visible

_ROOT = r"(?<![\w.])(?:[A-Za-z]:)?[\\/]"
# A folder and what is in it, from a root on; in quotes it may have spaces.
_PATHS = (
    re.compile(_ROOT + r"[^'\"\n]*[\\/]([^\\/'\"\n]*)(?=['\"])"),
    re.compile(_ROOT + r"(?:[^\s\\/:;,'\"()|<>]+[\\/])+([^\s\\/:;,'\"()|<>]*)"),
)
_ABOUT = ("verdict", "runtime", "device", "file")
_WIDTH = 110
_KNOWN = "/\ue000"  # stands for a folder that is known, which may have spaces too


class ReportFiles:
    """The two files of one report; they are there from the start, so that nothing can hinder the
    end."""

    def __init__(self, folder: Path, day: str) -> None:
        """New names in ``folder``, which is made. Raises RequestError where nothing can be
        written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for stem in numbered(f"ingot-verify-{day}"):
                self.json, self.markdown = folder / f"{stem}.json", folder / f"{stem}.md"
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
        """Write both files as things are now."""
        data = as_json(run)
        write_atomically(self.json, json_text(data, 1) + "\n")
        write_atomically(self.markdown, as_markdown(run, data))


def as_json(run: Verification) -> dict[str, Any]:
    """The report for programs."""
    data: dict[str, Any] = {
        "ingot": versions(["ingot"]).get("ingot", "not installed"),
        "date": f"{run.began:%Y-%m-%d %H:%M} UTC",
        "minutes_allowed": run.minutes,
        "seconds": run.seconds,
        "interrupted": run.interrupted,
        "verdicts": counts(run.lines),
        "others_share_before": run.others,
        "machine": run.machine.as_json() if run.machine else None,
        "lines": [asdict(line) for line in run.lines],
    }
    cleaned: dict[str, Any] = Cleaner(run.asked).clean(rounded(data))
    return cleaned


def as_markdown(run: Verification, data: Mapping[str, Any]) -> str:
    """The report for people, from what ``as_json`` has made."""
    told = ", ".join(f"{count} {name}" for name, count in counts(run.lines).items())
    ended = "; it was interrupted" if run.interrupted else ""
    about = f"{data['date']}, {run.seconds:.0f} s of {run.minutes:g} minutes{ended}: {told}."
    lines = [f"# Ingot {data['ingot']} on this machine", "", about]
    for check, same in itertools.groupby(data["lines"], key=lambda line: line["check"]):
        lines += ["", f"## {check}", ""]
        for line in same:
            about = ", ".join(filter(None, map(line.get, _ABOUT)))
            lines.append(_item(about, f"{line['found']} ({line['seconds']:.1f} s)"))
    if run.machine:
        cleaner = Cleaner(run.asked)
        lines += ["", "## what the machine is", ""]
        lines += [_item(name, cleaner.clean(found)) for name, found in rows(run.machine)]
    return "\n".join(lines) + "\n"


def _item(name: str, text: str) -> str:
    return textwrap.fill(
        f"- {markdown(name)}: {markdown(text)}",
        _WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
    )


class Cleaner:
    """Takes folders, the user's name and the machine's out of texts."""

    def __init__(self, models: Sequence[str] = ()) -> None:
        """``models`` are those that were asked for, whose folders are nobody's business either."""
        folders = {Path.home(), Path(sys.prefix), Path(tempfile.gettempdir())}
        folders |= {cache_dir(), data_dir(), state_dir(), here()}
        for one in map(Path, models):
            folders |= {one.parent, real(one).parent}
        known = {str(one) for one in folders if one.is_absolute() and one != Path(one.anchor)}
        self._folders = sorted(known, key=len, reverse=True)  # one may be in another
        names = {socket.gethostname()}
        with contextlib.suppress(OSError, KeyError, ImportError):
            names.add(getpass.getuser())
        words = "|".join(re.escape(name) for name in names if name)
        self._names = re.compile(rf"(?<!\w)(?:{words})(?!\w)" if words else r"(?!)")

    def clean(self, value: Any) -> Any:
        """Clean every text in ``value``."""
        if isinstance(value, Mapping):
            return {key: self.clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(item) for item in value]
        if isinstance(value, str):
            for folder in self._folders:
                value = value.replace(folder, _KNOWN)
            for path in _PATHS:
                value = path.sub(r".../\1", value)
            value = self._names.sub("...", value.replace(_KNOWN, "..."))
        return value


_COLOURS = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


# The lines as they come, and in a terminal below them what is checked now.


def _about(line: CheckLine) -> str:
    where = f"{line.runtime} {line.device}".strip()
    return "  ".join(filter(None, (line.check, where, line.file)))


@contextmanager
def shown(
    *, silent: bool
) -> Iterator[tuple[Callable[[CheckLine], None], Callable[[CheckLine], None]]]:
    """Functions that show a check that begins, and a line. Where stdout is for the report itself,
    ``silent``, they show nothing."""
    from rich.text import Text

    from quantize.terminal import Console

    console = Console(quiet=silent, highlight=False, soft_wrap=True)
    with console.status("") as status:

        def begins(line: CheckLine) -> None:
            status.update(Text(visible(_about(line))))

        def ends(line: CheckLine) -> None:
            verdict = (line.verdict, _COLOURS[line.verdict])
            console.print(Text.assemble(verdict, visible(f"  {_about(line)}  {line.found}")))

        yield begins, ends
