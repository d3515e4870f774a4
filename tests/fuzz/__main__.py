"""`python -m tests.fuzz [--minutes N] [--only NAME]`: every fuzzer in turn, and what they found.

Each target runs in a process of its own, so that what kills or stalls one is a finding and not the
end. The server has half of the time, the others share the rest. At the end there is a table of all
figures, and the same as JSON; exit code 1 where anything was found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from subprocess import PIPE
from typing import Any

from tests.fuzz.cases import CASE_S, MOST_FOUND, FoundError, failures

# Each is a module here with ``run(seconds, seed)``, and its part of the time.
TARGETS = {
    "server": 8.0, "reading": 1.5, "rows": 1.5, "kept": 1.5, "chats": 1.0, "hub": 1.5,
    "headers": 1.5, "folders": 1.5, "documents": 0.5,
}  # fmt: skip


def child(target: str, seconds: float, seed: int) -> None:
    """Run one target, and print its figures and violations as JSON."""
    said: dict[str, Any] = {"violations": []}
    try:
        said["figures"] = import_module(f"tests.fuzz.{target}").run(seconds, seed)
    except FoundError as error:
        said = {"figures": error.figures, "violations": error.violations}
    except AssertionError as error:
        said = {"figures": {}, "violations": [f"{target}: {error}"[:4000]]}
    sys.stdout.write(json.dumps(said) + "\n")


def ran(target: str, seconds: float, seed: int) -> dict[str, Any]:
    """What a child says of one target; or how it died, with the number of its last case."""
    with tempfile.TemporaryDirectory(prefix="ingot-fuzz-") as folder:
        begun = Path(folder, "begun")
        begun.write_text("0")
        command = [sys.executable, "-m", "tests.fuzz", "--child", target]
        command += ["--seconds", str(seconds), "--seed", str(seed)]
        environment = {**os.environ, "INGOT_FUZZ_BEGUN": str(begun)}
        with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, env=environment) as process:
            try:
                out, err = process.communicate(timeout=seconds + 4 * CASE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
        told = err[-6000:].decode("utf-8", "replace")
        if target == "server":
            sys.stderr.write(told)
        if process.returncode == 0 and out:
            said: dict[str, Any] = json.loads(out.splitlines()[-1])
            return said
        number = begun.read_text()
        kept = failures() / f"{target}-{seed}-{number}"
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "stderr.txt").write_text(told)
        again = f"python -m tests.fuzz --only {target} --seed {seed} --case {number}"
        how = "stalled" if "Timeout (" in told else f"ended with {process.returncode}"
        found = f"{target}: case {number} {how} ({kept}; again: {again})"
        return {"figures": {"deaths": 1, "cases": int(number)}, "violations": [found]}


def all_of(target: str, seconds: float, seed: int, first: bool) -> tuple[Counter[str], list[str]]:
    """Run a target until its time is over; after a violation that ended it with another seed."""
    figures, violations = Counter[str](), list[str]()
    end = time.monotonic() + seconds
    while True:
        said = ran(target, max(1.0, end - time.monotonic()), seed)
        for name, value in said["figures"].items():
            most = name.startswith(("slowest", "peak", "paths"))
            figures[name] = max(figures[name], value) if most else figures[name] + value
        violations += said["violations"]
        once = "INGOT_FUZZ_CASE" in os.environ or not said["figures"] or (first and violations)
        if once or len(violations) >= MOST_FOUND or end - time.monotonic() < 2:
            return figures, violations
        seed += 1
        if not said["violations"]:
            return figures, violations
        sys.stderr.write(f"fuzz: {target} goes on with seed {seed}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", action="append", choices=TARGETS)
    parser.add_argument("--seed", type=int, help="default: another each time")
    parser.add_argument("--case", type=int, help="with --only and --seed: this case alone")
    parser.add_argument("--first", action="store_true", help="end at the first violation")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    seed = int(time.time()) if given.seed is None else given.seed
    if given.child:
        child(given.child, given.seconds, seed)
        return 0
    if given.first:
        os.environ["INGOT_FUZZ_FIRST"] = "1"
    if given.case is not None:
        os.environ["INGOT_FUZZ_CASE"] = str(given.case)
    shares = {name: TARGETS[name] for name in given.only or TARGETS}
    seconds = 60 * given.minutes / sum(shares.values())
    figures, violations = dict[str, Counter[str]](), list[str]()
    for name in shares:
        sys.stderr.write(f"fuzz: {name}, {seconds * shares[name]:.0f} s, seed {seed}\n")
        figures[name], found = all_of(name, seconds * shares[name], seed, given.first)
        violations += found
        for one in found:
            sys.stderr.write(f"fuzz: {one}\n")
        if found and given.first:
            break
    for name, counts in figures.items():
        shown = ", ".join(f"{key} {value:,}" for key, value in sorted(counts.items()))
        sys.stdout.write(f"{name:<10} {shown}\n")
    sys.stdout.write(
        json.dumps({"seed": seed, "figures": figures, "violations": violations}) + "\n"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
