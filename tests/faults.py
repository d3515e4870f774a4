"""Sixty faults, one after another planted into a copy of the code: does a test find each?

    python -m tests.faults                 # all, with the tests of each fault's room
    python -m tests.faults --only kv       # those whose name or file has "kv"
    python -m tests.faults --whole         # a fault that its room's tests miss: every test

A fault is a line that a person could have written: a comparison the wrong way round, a dropped
fsync, a lost row, a wrong slot, a budget that is one too large. Whoever takes tests out runs this
before and after. Exits 1 if a fault was not found.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LONGEST_S = 300  # for the tests of a room


@dataclass(frozen=True)
class Fault:
    """``now`` takes the place of ``was``, which stands once in ``path``. ``tests`` are where it
    should be found; by default the tests of the file's folder."""

    path: str
    was: str
    now: str
    tests: str = ""

    @property
    def rooms(self) -> list[list[str]]:
        """Files and folders of tests, those before others that name the file's module."""
        module = self.path.removesuffix(".py").replace("/", ".")
        word = re.compile(rf"\b{re.escape(module)}\b")
        files = sorted(ROOT.joinpath("tests").rglob("test_*.py"))
        near = [one for one in files if word.search(one.read_text(encoding="utf-8"))]
        named = [one.relative_to(ROOT).as_posix() for one in near]
        return [rooms for rooms in (named, self.tests.split() or [_mirror(self.path)]) if rooms]


def _mirror(path: str) -> str:
    folder = Path("tests") / Path(path).parent
    while not (ROOT / folder).is_dir():
        folder = folder.parent
    return folder.as_posix()


FAULTS = [
    # The engine
    Fault("runtimes/engine/policy.py", ".bit_length() == bucket", ".bit_length() >= bucket"),
    Fault("runtimes/engine/policy.py", "if seconds <= 0 and stalled:", "if False:"),
    Fault(
        "runtimes/engine/policy.py",
        "one.request.priority > priority and",
        "one.request.priority >= priority and",
    ),
    Fault("runtimes/engine/sequence.py", "drawn >= params.max_tokens", "drawn > params.max_tokens"),
    Fault("runtimes/engine/sequence.py", "len(self.prompt) + drawn > context", "drawn > context"),
    Fault("runtimes/engine/scheduler.py", "now >= deadline", "now < deadline"),
    Fault(
        "runtimes/engine/scheduler.py",
        "sequence.computed -= len(guessed) - right",
        "sequence.computed -= len(guessed) - right - 1",
    ),
    Fault("runtimes/engine/kv_cache.py", "held.adapter != wanted.adapter or", "False or"),
    Fault(
        "runtimes/engine/kv_cache.py",
        "elif length < shortest",
        "elif length <= shortest",
    ),
    Fault(
        "runtimes/engine/kv_cache.py",
        "self._kv.shift(sequence.slot, keep, discard)",
        "self._kv.shift(sequence.slot, keep, discard - 1)",
    ),
    Fault(
        "runtimes/engine/prefix_pool.py",
        "self.nbytes + len(data) > self.budget",
        "self.nbytes > self.budget",
    ),
    Fault("runtimes/engine/prompt_scores.py", "known + 1 >= len", "known + 2 >= len"),
    # Sampling, thoughts, constraints, templates
    Fault("runtimes/sampling/state.py", "value / factor, value * factor", "value * factor, value"),
    Fault("runtimes/sampling/state.py", "params.min_tokens if eos_ids", "0 if eos_ids"),
    Fault("runtimes/sampling/state.py", "(counts > 0)", "counts"),
    Fault(
        "runtimes/sampling/whole_row.py",
        "kept &= weights >= np.float32(params.min_p)",
        "kept |= weights >= np.float32(params.min_p)",
    ),
    Fault("runtimes/grammars.py", "len(choices) > MOST_CHOICES", "len(choices) > 2 * MOST_CHOICES"),
    Fault("runtimes/templates/budget.py", "time.thread_time() > self._deadline", "False"),
    # The worker
    Fault("runtimes/worker/recovery.py", "after > before", "after < before"),
    Fault(
        "runtimes/worker/supervisor.py",
        "retryable=failed and retryable",
        "retryable=False",
    ),
    # The runtimes and their files
    Fault(
        "runtimes/runner.py",
        "length >= self.context}",
        "length > self.context}",
        "tests/runtimes/devices/test_onnx_devices.py",
    ),
    Fault(
        "runtimes/onnx/kv.py",
        "self._copy(source, target, length)",
        "self._copy(target, source, length)",
    ),
    Fault(
        "runtimes/llamacpp/kv.py",
        "self.lengths[slot] = min(self.lengths[slot], length)",
        "self.lengths[slot] = length + 1",
        "tests/runtimes/engine/test_kv.py tests/runtimes/engine/test_engine.py",
    ),
    Fault("runtimes/llamacpp/memory.py", "(3 * model.feed_forward", "(30 * model.feed_forward"),
    Fault("runtimes/models/memory.py", "if need <= available", "if need >= available"),
    Fault(
        "runtimes/untrusted.py",
        '{"", ".", ".."} & set(parts)',
        '{"", "."} & set(parts)',
        "tests/quantize/build/test_hostile_folders.py tests/quantize/test_manifest.py",
    ),
    Fault(
        "runtimes/untrusted.py",
        "if is_link(path):",
        "if False:",
        "tests/quantize/build/test_hostile_folders.py",
    ),
    Fault("runtimes/untrusted.py", "if nested and depth >= bounds.depth", "if False"),
    Fault("runtimes/machine/state_file.py", "(most - 1)", "most", "tests/runtimes/machine"),
    Fault("runtimes/machine/cgroup.py", "max(left, 0)", "max(left, 1 << 40)"),
    Fault("runtimes/planner/candidates.py", "if speed >= enough", "if speed >= 0"),
    Fault("runtimes/planner/known.py", "plan.memory <= task.free", "True"),
    # quantize
    Fault(
        "quantize/disk.py",
        "os.fsync(file.fileno())\n        partial.replace(path)",
        "partial.replace(path)",
    ),
    Fault("quantize/disk.py", "needed + _SPARE > free", "needed > 2 * free"),
    Fault(
        "quantize/hub/transfer.py",
        "return self.digest.hexdigest() == self.file.key",
        "return self.have == self.file.bytes",
    ),
    Fault(
        "quantize/hub/transfer.py",
        "self.have, self.digest = 0, _new_digest(self.file)\n            try",
        "self.digest = _new_digest(self.file)\n            try",
    ),
    Fault(
        "quantize/quality/fidelity.py",
        "fidelity.kl_mean > limits.kl_mean",
        "fidelity.kl_mean > 9 * limits.kl_mean",
    ),
    Fault("quantize/quality/fidelity.py", "max(count - 1, 1)", "max(count * count, 1)"),
    Fault("quantize/onnx/rounding.py", "zeros: Any = 1 << (variant.bits - 1)", "zeros: Any = 0"),
    Fault("quantize/manifest.py", "if min(sizes) < 0", "if max(sizes) < 0"),
    # Batches
    Fault("app/batch/journal/journal.py", "os.fsync(self._descriptor)", "pass"),
    Fault(
        "app/batch/journal/journal.py",
        "os.ftruncate(self._descriptor, self._end)",
        "pass",
    ),
    Fault("app/batch/input/source.py", "rows.limit)", "rows.limit and 9)"),
    Fault("app/batch/input/source.py", "== self.number - 1", "== self.number"),
    Fault("app/batch/output/merge.py", "range(1, count + 1)", "range(1, count)"),
    Fault("app/batch/output/publish.py", "os.truncate(self._out, end)", "pass"),
    Fault("app/batch/schedule/job.py", "max(Priority.CRITICAL, row.rank)", "Priority.NORMAL"),
    Fault("app/batch/dryrun.py", "(self.prompts - 1)", "self.prompts"),
    # OpenAI's bodies and the server
    Fault("app/openai/prepare.py", "len(ids) + room > encoder.context", "False"),
    Fault("app/openai/validation.py", "    if count > most:", "    if count > 9 * most:"),
    Fault("app/openai/scoring.py", "sums.index(max(sums))", "sums.index(min(sums))"),
    Fault(
        "app/serve/connection.py",
        "len(head) > MOST_HEAD_BYTES or",
        "False or",
        "tests/app/serve/test_hostile_clients.py",
    ),
    Fault(
        "app/serve/pool.py",
        "if one.leases == 0 and",
        "if",
        "tests/app/serve/test_lifecycle.py",
    ),
    Fault("app/serve/batches/store.py", "len(line) > _MOST_BYTES", "len(line) < 0"),
    # Chat, compare, the library, the terminal app
    Fault("app/chat/budget.py", "self.prompt_tokens + self.max_tokens <= self.context", "True"),
    Fault("app/chat/conversation.py", "among.index(id) + step, 0", "among.index(id) - step, 0"),
    Fault("app/chat/attachments.py", "stream.read(MOST_BYTES + 1)", "stream.read(MOST_BYTES)"),
    Fault(
        "app/compare/results.py",
        "row.parts[number - 1] for row in both",
        "row.parts[0] for row in both",
    ),
    Fault("app/models/library.py", "if len(found) > 1:", "if len(found) > 9:"),
    Fault("app/tui/widgets/text_lines.py", "if row >= len(self._rows)", "if row > len(self._rows)"),
]


def _copied(folder: Path) -> Path:
    """A copy of what git tracks, with the sources of the tests beside it."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _found(tree: Path, rooms: list[str], workers: int) -> str:
    """The first test that fails, or an empty text."""
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *rooms]
    command += ["--timeout", "60"]
    command += ["-n", str(workers)] if workers > 1 else []
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            command, cwd=tree, env=env, stdout=said, stderr=said, text=True, start_new_session=True
        )
        try:
            code = child.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return ""
        finally:
            child.wait()
        said.seek(0)
        named = re.search(r"^(?:FAILED|ERROR) (\S+)", said.read(), re.MULTILINE)
    return "" if code == 0 else named[1] if named else f"pytest ended with {code}"


@contextmanager
def planted(tree: Path, fault: Fault) -> Iterator[None]:
    """Plant a fault into ``tree``, and take it out again."""
    path = tree / fault.path
    text = path.read_text(encoding="utf-8")
    if text.count(fault.was) != 1:
        raise SystemExit(f"{fault.path} has {text.count(fault.was)} times: {fault.was}")
    path.write_text(text.replace(fault.was, fault.now), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Plant them; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="those with this in their path or text")
    parser.add_argument("--first", type=int, default=1, help="begin with this one")
    parser.add_argument("--whole", action="store_true", help="every test for what is missed")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    options = parser.parse_args()
    chosen = [one for one in FAULTS if options.only in f"{one.path} {one.was}"]
    chosen = chosen[options.first - 1 :]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="ingot-faults-") as folder:
        tree = _copied(Path(folder))
        for number, fault in enumerate(chosen, options.first):
            started = time.monotonic()
            with planted(tree, fault):
                rooms = [*fault.rooms, *([["tests"]] if options.whole else [])]
                tried = (_found(tree, one, options.workers) for one in rooms)
                found = next(filter(None, tried), "")
            missed += not found
            seconds = time.monotonic() - started
            line = f"{number:2} {seconds:5.0f} s  {fault.path}: {fault.was!r} -> {fault.now!r}"
            sys.stdout.write(f"{line}\n      {found or 'NOT FOUND'}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - missed} of {len(chosen)} found\n")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
