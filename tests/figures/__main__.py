"""`python -m tests.figures`: measure what docs/performance.md and README.md show, write it there.

Every run of a command is a line of docs/figures.jsonl, with its machine, versions and output. What
is there of this machine and these versions is not run again, so that a run that was ended goes on.
The tables follow from that file alone (`--render`). A section that fails keeps its old text, and
the exit code is 1.

FIGURES_PEERS names llama-server, llama-batched-bench and llama-bench, or their folders, as PATH
does; OpenVINO GenAI is compared where it can be imported.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from quantize.disk import write_atomically
from runtimes.machine.hardware import detect, memory_bandwidth
from runtimes.machine.installed import versions
from tests.figures.sections import QUICK, SECTIONS, Section, libraries, tools
from tests.figures.tables import Peer, Table, fill, markers, slower, unequal

ROOT = Path(__file__).parents[2]
DOCS = ("README.md", "docs/performance.md")
DATA = "docs/figures.jsonl"
_LIBRARIES = (
    "ingot llama-cpp-python onnxruntime onnxruntime-genai openvino-genai torch transformers"
).split()
_LIMIT_S = 1800.0
_BULK = ("points", "plan", "frames_ms", "key_ms", "sha256", "tools", "notes")  # not shown
SLOWER, MACHINE = "slower", "machine"


class FailedError(Exception):
    """A command did not give figures; the text says why."""


@dataclass(frozen=True)
class Run:
    """One round of a section. ``others``: the share of the processor that other programs took."""

    section: str
    round: int
    command: str
    machine: dict[str, Any]
    at: str
    seconds: float
    others: float
    read_gbs: float  # of the memory
    output: Any = field(repr=False)


def load(path: Path) -> list[Run]:
    if not path.is_file():
        return []
    return [Run(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def save(path: Path, runs: list[Run]) -> None:
    order = [*SECTIONS]
    ranked = sorted(runs, key=lambda one: (order.index(one.section), one.round))
    write_atomically(path, "".join(json.dumps(asdict(one)) + "\n" for one in ranked))


def machine() -> dict[str, Any]:
    """What figures depend on."""
    hardware = detect()
    return {
        "cpu": hardware.cpu,
        "cores": hardware.usable_cores,
        "instruction_sets": list(hardware.instruction_sets),
        "gib": round(hardware.ram_total / 2**30, 1),
        "versions": versions(_LIBRARIES),
    }


# Running.


@dataclass(frozen=True)
class Models:
    """Where the models are, as words of a command."""

    big: str = "--random qwen2-0.5b"
    small: str = ".figures/smollm2"
    pebble: str = ".figures/pebble"
    picture: str = "assets/sweep.png"

    def words(self, section: Section, here: dict[str, Path]) -> str:
        """The section's arguments of `ingot` with everything put in."""
        text = section.words.removeprefix("ingot ")
        for name, value in asdict(self).items():
            quoted = value if value.startswith("--") else shlex.quote(value)
            text = text.replace(f"{{{name}}}", quoted)
        for name, path in here.items():
            text = text.replace(f"{{{name}}}", shlex.quote(str(path)))
        return text


def shown(section: Section, against: list[str]) -> str:
    """The command, for a reader."""
    text = section.words.replace("{big}", "--random qwen2-0.5b").replace("{small}", "smollm2-built")
    text = text.replace("{pebble}", "assets/pebble-built").replace("{picture}", "sweep.png")
    for name in section.tools:
        text = text.replace(f"{{{name}}}", "PROGRAM")
    return " ".join([text, *(f"--against {name}" for name in against)])


def python(*words: str) -> str:
    """What a command of ours prints. Raises FailedError with its last lines."""
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True,
            text=True, errors="replace", timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(
                part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part
            )},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"it did not end within {_LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
        raise FailedError(f"exit code {done.returncode}: {' / '.join(last) or 'it said nothing'}")
    return done.stdout


def against(section: Section, here: dict[str, Path]) -> list[str]:
    """The peers of a sweep that are here."""
    found = libraries()
    return [
        name for name in section.peers if found.get(name, name in here or name == "ingot-serve")
    ]


def measure(section: Section, number: int, models: Models, about: dict[str, Any]) -> Run:
    """One round. Raises FailedError."""
    here = tools()
    others = against(section, here)
    begun, before = time.time(), _busy()
    if section.name.startswith("quality-"):
        small = section.name.endswith("smollm2")
        manifest = _built(models, "--fresh", small=small)
        output = json.loads(manifest.read_text(encoding="utf-8"))
    else:
        for name, small in (("{small}", True), ("{pebble}", False)):
            folder = ROOT / (models.small if small else models.pebble)
            if name in section.words and not (folder / "manifest.json").is_file():
                _built(models, "--no-measure", small=small)
        words = shlex.split(models.words(section, here))
        for name in others:
            words += ["--against", f"{name}={here[name]}" if name in here else name]
        output = json.loads(python("-m", "app", *words, "--json"))
    seconds, after = time.time() - begun, _busy()
    total = after[0] - before[0]
    foreign = (after[1] - before[1]) - (after[2] - before[2])
    return Run(
        section.name, number, shown(section, others), about,
        datetime.now(UTC).isoformat(timespec="seconds"), round(seconds, 1),
        round(max(0.0, foreign / total) if total else 0.0, 3),
        round(memory_bandwidth(about["cores"]) / 1e9, 1), trimmed(output),
    )  # fmt: skip


def _busy() -> tuple[float, float, float]:
    """Seconds of all cores, those in which any program ran, and those of this process's children
    that have ended."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    ours = os.times()
    own = ours.user + ours.system + ours.children_user + ours.children_system
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    total = sum(times) - guests
    return total, total - idle, own


def _built(models: Models, *words: str, small: bool) -> Path:
    """Build one of the two models by `quantize` with these words."""
    out = ROOT / (models.small if small else models.pebble)
    source = python("-m", "tests.real.smollm2").strip() if small else str(ROOT / "assets/pebble")
    python("-m", "quantize", source, "--out", str(out), *words)
    return out / "manifest.json"


def trimmed(value: Any) -> Any:
    """Output without what no table shows, and five digits of the rest."""
    if isinstance(value, dict):
        return {name: trimmed(item) for name, item in value.items() if name not in _BULK}
    if isinstance(value, list):
        return [trimmed(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


# Rendering.


def tables(runs: list[Run], sections: dict[str, Section]) -> tuple[dict[str, Table], list[Peer]]:
    """Of all sections whose rounds are there."""
    found: dict[str, Table] = {}
    peers: list[Peer] = []
    for name, section in sections.items():
        outputs = [run.output for run in runs if run.section == name]
        if outputs:
            found[name], more = section.made(outputs)
            peers += more
    return found, peers


def _wrapped(command: str) -> str:
    """As a block of code, in lines of a page's width."""
    lines = textwrap.wrap(
        command, 108, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return textwrap.indent(" \\\n".join(lines), "    ")


def blocks(runs: list[Run], sections: dict[str, Section]) -> dict[str, str]:
    """Text of every block that the runs have figures for."""
    found, peers = tables(runs, sections)
    texts = {}
    for name, table in found.items():
        own = [run for run in runs if run.section == name]
        title = sections[name].title
        times = f"{len(own)} rounds" if len(own) > 1 else "one round"
        head = f"{title[:1].upper()}{title[1:]}; {times}."
        texts[name] = "\n".join([head, "", _wrapped(own[0].command), "", *table.lines()])
    if peers:
        texts[SLOWER] = "\n".join(slower(peers))
    if runs:
        texts[MACHINE] = _machine(runs)
    return texts


def _machine(runs: list[Run]) -> str:
    about = runs[-1].machine
    told = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    days = sorted(run.at[:10] for run in runs)
    read = statistics.median(run.read_gbs for run in runs)
    text = (
        f"{about['cores']} cores of {about['cpu']} ({', '.join(about['instruction_sets'])}),"
        f" {about['gib']} GiB, {read:.0f} GB/s read; {told}. Measured"
        f" {' to '.join(dict.fromkeys((days[0], days[-1])))} (year-month-day); meanwhile other"
        f" programs took at most {max(run.others for run in runs):.0%} of the processor."
    )
    return "\n".join(textwrap.wrap(text, 118, break_on_hyphens=False))


def render(runs: list[Run], sections: dict[str, Section], docs: list[Path]) -> list[str]:
    """Fill the documents; names of blocks that they have and nothing was measured for."""
    texts = blocks(runs, sections)
    fill(docs, texts)
    wanted = {name for path in docs for name in markers(path.read_text(encoding="utf-8"))}
    return sorted(wanted - texts.keys())


# The command.


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=__doc__)
    parser.add_argument("--only", help="sections, separated by commas")
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    parser.add_argument("--quick", action="store_true", help="few small sections, on Pebble alone")
    parser.add_argument("--pebble", help="the folder of Pebble's files, which is built without")
    parser.add_argument("--render", action="store_true", help="run nothing")
    parser.add_argument("--list", action="store_true", help="say what would run, and for how long")
    parser.add_argument("--compare", type=Path, help="an earlier figures.jsonl: what has changed")
    parser.add_argument("--data", type=Path, default=ROOT / DATA)
    parser.add_argument("--docs", type=Path, default=ROOT, help="the folder of README.md and docs")
    given = parser.parse_args()
    every = QUICK if given.quick else SECTIONS
    names = given.only.split(",") if given.only else list(every)
    if unknown := [name for name in names if name not in every]:
        parser.error(f"no section {unknown[0]!r}; there are: {', '.join(every)}")
    runs, failed = load(given.data), {}
    chosen = [every[name] for name in names]
    if given.pebble:
        given.pebble = str(Path(given.pebble).resolve())
    if not given.render:
        runs, failed = run_all(chosen, runs, given)
        if given.list:
            return 0
    docs = [path for name in DOCS if (path := given.docs / name).is_file()]
    whole = [run for run in runs if run.section not in failed]
    for name in render(whole, every, docs):
        if name not in failed and not given.quick:
            say(f"{name}: nothing was measured, the old text stays")
    for name, why in failed.items():
        say(f"{name}: FAILED, the old text stays: {why}")
    changed = []
    if given.compare:
        old, new = (tables(one, every)[0] for one in (load(given.compare), whole))
        changed = unequal(old, new)
        count = sum(len(new[name].values()) for name in old.keys() & new.keys())
        say("\n".join([f"{len(changed)} of {count} figures differ by more than scatter", *changed]))
    return 1 if failed or changed else 0


def run_all(
    chosen: list[Section], runs: list[Run], given: argparse.Namespace
) -> tuple[list[Run], dict[str, str]]:
    """What is missing, round by round; why sections failed."""
    about = machine()
    models = Models(pebble=given.pebble) if given.pebble else Models()
    names = {one.name for one in chosen}
    foreign = [run for run in runs if run.machine != about]
    if foreign:
        say(f"{len(foreign)} runs of another machine or of other versions are dropped")
    here = tools()
    for one in [one for one in chosen if {*one.tools} - here.keys()]:
        missing = ", ".join(sorted({*one.tools} - here.keys()))
        say(f"{one.name}: left out, {missing} is not here (FIGURES_PEERS names it)")
        chosen.remove(one)
    commands = {one.name: shown(one, against(one, here)) for one in chosen}
    runs = [
        run
        for run in runs
        if run not in foreign
        and commands.get(run.section, run.command) == run.command
        and not (given.again and run.section in names)
    ]
    have = {(run.section, run.round) for run in runs}
    todo = [
        (section, number)
        for number in range(1, max((one.rounds for one in chosen), default=0) + 1)
        for section in chosen
        if number <= section.rounds and (section.name, number) not in have
    ]
    minutes = sum(section.minutes for section, _ in todo)
    say(f"{len(todo)} runs, about {minutes:.0f} minutes")
    failed: dict[str, str] = {}
    for section, number in todo:
        if given.list:
            say(f"{section.name}, round {number}: about {section.minutes:.1f} minutes")
            continue
        if section.name in failed:
            continue
        try:
            run = measure(section, number, models, about)
            section.made([run.output])  # what no table can be made of is a failure, too
        except (FailedError, OSError, LookupError, TypeError, ValueError) as error:
            failed[section.name] = str(error) or repr(error)
            say(f"{section.name}, round {number}: failed: {failed[section.name]}")
            continue
        runs.append(run)
        save(given.data, runs)
        minutes -= section.minutes
        say(f"{section.name}, round {number}: {run.seconds:.0f} s, {minutes:.0f} minutes left")
    return runs, failed


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
