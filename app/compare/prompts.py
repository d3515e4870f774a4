"""A file of prompts to several files, one after another: each a batch job of its own, whose journal
is kept, so that a run that was killed loses no answer and a file that is added later asks only
itself; the results of all of them; and that command as a process that a screen follows.

::

    STATE/compare/ANSWERS/answers.jsonl     one file's answers to one file of prompts, and a journal
    STATE/compare/REPORT/results.json       what the last run of a comparison found
    STATE/compare/REPORT/votes.jsonl        what the user preferred

ANSWERS and REPORT are hashes of the paths. The oldest go when there are too many.
"""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from app.batch.input.prompting import Prompting
from app.batch.input.source import Row, open_source
from app.batch.journal.journal import journal_path
from app.batch.spec import BatchSpec, InputOptions, OutputOptions
from app.batch.watch.follow import FollowedJournal
from app.batch.watch.process import last_words
from app.batch.watch.rows import Rows
from app.compare.answers import PROBE, Told, equal_from_start
from app.compare.results import FileResult, PromptResult, Results, Unit, middle, pair_of
from app.exitcodes import ExitCode
from app.here import here, real, whole
from app.models.catalog import ModelEntry, entry_of, with_bits
from app.models.library import model_file
from app.openai.answer import Answer
from app.options import ModelOptions, SamplingOptions
from runtimes.errors import IngotError, RequestError
from runtimes.machine.processes import Child
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import tokenizer_of
from runtimes.paths import state_dir
from runtimes.untrusted import Fields

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
    reproducible: bool = False

    def answers(self, entry: ModelEntry) -> Path:
        """Path of a file's answers; their journal is beside it."""
        return _folder(self.prompts, [entry.path]) / "answers.jsonl"

    @property
    def folder(self) -> Path:
        """Folder of the report and the votes."""
        return _folder(self.prompts, [entry.path for entry in self.entries])

    def rows(self) -> InputOptions:
        """Options by which the prompts are read."""
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
            reproducible=self.reproducible,
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
    """Names of the files for people; files of one name have their paths."""
    labels = [entry.label for entry in entries]
    return [one.label if labels.count(one.label) == 1 else str(one.path) for one in entries]


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
    folders = sorted(job.folder.parent.iterdir(), key=lambda folder: -folder.stat().st_mtime)
    for old in folders[_MOST:]:
        shutil.rmtree(old, ignore_errors=True)
    return codes


def _folder(prompts: Path, files: Sequence[Path]) -> Path:
    names = [os.fspath(whole(prompts)), *(os.fspath(real(file)) for file in files)]
    return state_dir() / "compare" / hashlib.sha256(json.dumps(names).encode()).hexdigest()[:20]


logger = logging.getLogger(__name__)

Encode = Callable[[str], Sequence[int]]


def collect(job: PromptsJob) -> Results:
    """Compare the answers of a finished job. Reads the answers and the tokenizers, no weights.
    Raises IngotError or OSError."""
    told = [_answers(job.answers(entry)) for entry in job.entries]
    models = [model_file(str(entry.path), ModelOptions()) for entry in job.entries]
    encoders = list(map(_encoder, models))
    units = [_unit(encoders[0], encode) for encode in encoders[1:]]
    rows: list[PromptResult] = []
    params = job.sampling.params()
    with open_source(str(job.prompts), Prompting.from_options(job.rows(), params)) as source:
        for row in source.rows():
            expected = expected_of(row.fields)
            answers = tuple(_told(found.get(row.index), expected) for found in told)
            rows.append(_row(row, answers, expected, units, encoders[0]))
    files = zip(job.entries, labels_of(job.entries), models, strict=True)
    return Results(
        str(job.prompts),
        tuple(_file(*file, number, rows) for number, file in enumerate(files)),
        tuple(pair_of(rows, number, unit) for number, unit in enumerate(units, 1)),
        tuple(rows),
        *(params.temperature, params.max_tokens, params.seed, job.system),
    )


def expected_of(fields: Fields) -> tuple[str, ...]:
    """The answers that a row of the input calls right: its ``expected``, else its ``answer``. A
    list has several, and a number is a place in the row's ``choices`` where it has some."""
    given = (fields.get(name) for name in ("expected", "answer"))
    value = next((value for value in given if value not in (None, "", [])), None)
    if value is None:
        return ()
    choices = fields.get("choices")
    if isinstance(choices, list) and type(value) is int and 0 <= value < len(choices):
        value = choices[value]
    values = value if isinstance(value, list) else [value]
    texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return tuple(text.strip() for text in texts)


def _answers(path: Path) -> dict[int, Answer]:
    found = {}
    with path.open("rb") as file:
        for line in file:
            record = json.loads(line)
            found[int(record["index"])] = Answer.from_json(record)
    return found


def _told(answer: Answer | None, expected: tuple[str, ...]) -> Told:
    if answer is None:
        return Told(error="no answer")
    if answer.error is not None:
        return Told(answer.partial or "", f"{answer.error.code}: {answer.error.message}")
    text, timings = "\n\n".join(answer.texts), answer.timings or {}
    tokens = (answer.usage or {}).get("completion_tokens", 0)
    speeds = timings.get("decode_tps"), timings.get("ttft_s")
    right = text.strip() in expected if expected else None
    return Told(text, None, answer.finish_reason, tokens, *speeds, right)


def _row(
    row: Row,
    answers: tuple[Told, ...],
    expected: tuple[str, ...],
    units: Sequence[Unit],
    encode: Encode | None,
) -> PromptResult:
    first, *others = answers
    parts: list[tuple[int | None, int | None]] = []  # in the unit, and in characters
    for unit, other in zip(units, others, strict=True):
        place = part = None
        if not (first.error or other.error) and first.text != other.text:
            place = part = equal_from_start(first.text, other.text)
            if unit == "tokens" and encode is not None:
                part = equal_from_start(encode(first.text), encode(other.text))
        parts.append((part, place))
    said = [*(f"{m['role']}: {m['content']}" for m in row.task.history), *row.task.turns]
    found, places = zip(*parts, strict=True)
    prompt = "\n".join(said)
    return PromptResult(row.index, str(row.id), prompt, answers, found, places, expected)


def _file(
    entry: ModelEntry, label: str, model: ModelFile, number: int, rows: Sequence[PromptResult]
) -> FileResult:
    entry = with_bits(entry)
    good = [one for row in rows if (one := row.answers[number]).error is None]
    marked = any(row.expected for row in rows)
    return FileResult(
        label=label,
        file=str(entry.path),
        runtime=model.runtime,
        bytes=entry.bytes,
        bits_per_weight=entry.bits_per_weight,
        kl=entry.fidelity.kl_mean if entry.fidelity else None,
        answered=len(good),
        failed=len(rows) - len(good),
        right=sum(one.right is True for one in good) if marked else None,
        completion_tokens=sum(one.tokens for one in good),
        decode_tps=middle(one.decode_tps for one in good),
        ttft_s=middle(one.ttft_s for one in good),
    )


def _encoder(model: ModelFile) -> Encode | None:
    """The file's tokenizer, without its weights; None for one that cannot be read."""
    try:
        tokenizer = tokenizer_of(model)
    except IngotError as error:
        logger.info("no tokens of %s: %s", model.path, error)
        return None
    return lambda text: tokenizer.encode(text, add_special=False, parse_special=False)


def _unit(first: Encode | None, other: Encode | None) -> Unit:
    """Tokens where both files cut a text of several scripts alike."""
    alike = first is not None and other is not None and list(first(PROBE)) == list(other(PROBE))
    return "tokens" if alike else "characters"


_GENTLE_S = 20.0  # to finish the running answers before it is killed


@dataclass(frozen=True, slots=True)
class CompareProgress:
    """``file`` is at work, from 0; answers are those of all files, their ``total`` None before the
    rows are counted; ``left_s`` is about how long all of it takes, None while nobody knows."""

    file: int = 0
    done: int = 0
    total: int | None = None
    failed: int = 0
    left_s: float | None = None
    running: bool = True
    stopped: bool = False  # by the user
    error: str = ""


class PromptsProcess:
    """A running command, which ends with this process; finished answers are kept. ``poll`` reads
    the journals and may take a while; the other methods return at once."""

    def __init__(self, job: PromptsJob) -> None:
        """Start it. Raises OSError."""
        self._errors = tempfile.NamedTemporaryFile(prefix="ingot-compare-")  # noqa: SIM115
        self._journals = [
            FollowedJournal(journal_path(job.answers(entry)), Rows()) for entry in job.entries
        ]
        self._began = time.time()
        self._kill_at = inf  # once it is told to end
        self._process = Child(
            *("-m", "app", "compare", *_arguments(job)),
            environment={"NO_COLOR": "1"},
            # All paths are from the root; only a folder that is there can be worked in.
            cwd=None if here().is_absolute() else state_dir(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )

    def stop(self) -> None:
        """Let the command finish its running answers; the second call kills it."""
        if self._process.poll() is not None:
            return
        if self._kill_at == inf:
            self._kill_at = time.monotonic() + _GENTLE_S
            self._process.terminate()
        else:
            self._process.kill()

    def poll(self) -> CompareProgress:
        """Read the journals; return the progress."""
        code = self._process.poll()
        if code is None and time.monotonic() > self._kill_at:
            self._process.kill()
        for journal in self._journals:
            while journal.read():
                pass
        mine = [
            (one, run)
            for one in self._journals
            if (run := one.run) is not None and run.get("pid") == self._process.pid
        ]
        asked = sum(one.done + one.failed for one, _ in mine)
        done = asked + sum(run["reused"] + run["invalid"] for _, run in mine)
        total = int(mine[0][1]["rows"]) * len(self._journals) if mine else None
        failed = sum(run["invalid"] + one.failed for one, run in mine)
        left = None
        if total is not None and asked:
            left = (time.time() - self._began) / asked * (total - done)
        found = CompareProgress(max(len(mine) - 1, 0), done, total, failed, left, code is None)
        if code in (None, ExitCode.DONE, ExitCode.ROWS_FAILED):
            return found
        if self._kill_at < inf:
            return replace(found, stopped=True)
        said = last_words(Path(self._errors.name)) or f"it ended with exit code {code}"
        return replace(found, error=said)


def _arguments(job: PromptsJob) -> list[str]:
    """The arguments after `ingot compare` that say ``job``."""
    files = (str(whole(entry.path)) for entry in job.entries)
    limit = [] if job.limit is None else [f"--limit={job.limit}"]
    options = f"--prompts={job.prompts}", f"--max-tokens={job.sampling.max_tokens}"
    return [*files, *options, *limit, "--json", "--quiet"]
