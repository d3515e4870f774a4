"""Measure any model file against its original, whoever made it: `ingot measure`.

What may be wrong with a file shows in different places, so that there are several gates: tokens,
chat template, settings and weights (GGUF), and whether it gives probabilities at all. The figures
are those that `quantize` measures of what it builds. Original and file are never in memory
together: the original's distributions go to disk, once for each text, and are kept.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from quantize.cards import Card, load_card, save_card
from quantize.children import PATIENT, run_child
from quantize.disk import require_room, sha256_text
from quantize.errors import ToolError, UsageError
from quantize.gguf.converter import export_f16
from quantize.gguf.imatrix import compute
from quantize.gguf.weights import compare_weights, other_settings
from quantize.manifest import (
    FileEntry,
    Manifest,
    ModelInfo,
    ModelOrigin,
    OwnRows,
    Quality,
    TokenParity,
)
from quantize.options import DEFAULT_LIMIT, SourceOptions
from quantize.progress import Reporter
from quantize.quality import built_child, float_child
from quantize.quality.fidelity import FloatReference, load_reference
from quantize.quality.text import WINDOW, GradedQuestion, read_questions, read_text
from quantize.quality.tokens import (
    Reference,
    compare_built,
    first_apart,
    read_reference,
    shown_differences,
)
from quantize.recipes import FORMATS, bits_per_weight
from quantize.report.facts import pareto_front
from quantize.resolve import format_of
from quantize.source import SourceModel, open_source
from quantize.stages import versions
from runtimes.chat import render_chat
from runtimes.errors import IngotError, RequestError
from runtimes.models.gguf import read_header, read_parts
from runtimes.models.modelfile import ModelFile, fingerprint
from runtimes.models.registry import backend_of
from runtimes.paths import cache_dir
from runtimes.settings import KvType

logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")
Ask = Callable[[Path, Path], OwnRows]  # of the original as a file that runs, and of a file

_VERSION = 1  # of what is measured: cards of another are measured again
_WORK = ".work-"
_KEPT = 4  # folders: distributions of an original by length of text, and its conversion
_FEWEST = 256  # tokens for an importance matrix
_HALF = 2  # bytes of a weight
_LEFT_S = 24 * 3600.0  # after which what a killed run has left is nobody's
# Conversations of one turn and of several, with tools and their results, with thoughts; each with
# what a template is told beside it.
_TALKS = Path(__file__).parent / "data" / "conversations.json"


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Files to measure against an original, on a text, by graded questions; ``speed``: also how
    fast they are. ``again`` measures what has a card once more."""

    files: Sequence[ModelFile]
    original: SourceOptions
    text: Path | None = None  # None: the one that came with the original, else the bundled one
    limit: int = DEFAULT_LIMIT  # tokens that are scored
    questions: Path | None = None  # None: those that came with the original, if any
    speed: bool = True
    again: bool = False
    kv_types: tuple[KvType, ...] = ()  # that GGUF files are measured with as well ...
    context: int = 4096  # ... behind so many tokens
    ask: Ask | None = None  # has both answer the user's rows


@dataclass(slots=True)
class _Original:
    """The original as files of ``job`` are held against it; its parts are made where a file needs
    them."""

    job: MeasureJob  # with the text that is measured on, None for the bundled one
    source: SourceModel
    origin: ModelOrigin
    questions: Sequence[GradedQuestion]
    work: Path
    progress: Reporter
    key: str
    tokens: Reference
    info: ModelInfo | None = None
    reference: FloatReference | None = None
    floats: Path | None = None  # a GGUF file of its weights
    matrix: Path | None = None
    no_floats: str = ""  # why there is none

    def told(self, what: str, call: Callable[[], _Found], *, own: bool = False) -> _Found:
        """Return what ``call`` finds in a child process, as a stage; ``own``: with the original,
        which may need torch."""
        torch = own and self.source.kind == "hf"
        environment = PATIENT if own else None
        where = self.work, self.progress
        with self.progress.stage(what):
            return run_child(call, what, *where, environment=environment, torch=torch)


def measure(job: MeasureJob, progress: Reporter) -> list[Card]:
    """The cards of the files, in their order; each is kept as soon as it is known.

    Raises UsageError or SourceError for an original that is none, and what reading a file raises.
    """
    for file in job.files:
        file.require_writer()
    base = cache_dir() / "measure"
    base.mkdir(parents=True, exist_ok=True)
    for left in base.glob(f"{_WORK}*"):
        if time.time() - left.stat().st_mtime > _LEFT_S:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=base) as made:
        original = _open(job, Path(made), progress)
        return [_card(file, original) for file in job.files]


def manifest_of(cards: Sequence[Card]) -> Manifest:
    """The cards' figures as a manifest, for tables and charts, the smallest file first."""
    files = sorted((card.entry for card in cards), key=lambda entry: entry.bytes)
    known = (card.original for card in cards if card.original.perplexity is not None)
    return Manifest(next(known, cards[0].original), tuple(files))


def front(cards: Sequence[Card]) -> list[Card]:
    """The cards of sound files for which none is both smaller and nearer to the original."""
    sound = [card for card in cards if not card.faults]
    best = pareto_front([card.entry for card in sound])
    return [card for entry in best for card in sound if card.entry is entry]


def _open(job: MeasureJob, work: Path, progress: Reporter) -> _Original:
    source = open_source(job.original, progress)
    job = replace(job, text=job.text or source.evaluation)
    graded = job.questions or source.graded
    questions = read_questions(graded) if graded else ()
    with progress.stage("reading the original"):
        origin = source.fingerprint()
    key = {
        "version": _VERSION,
        "original": asdict(origin),
        "text": read_text(job.text).sha256,
        "limit": job.limit,
        "questions": [asdict(question) for question in questions],
        "tools": versions(FORMATS),
    }
    said = json.dumps(key, sort_keys=True, ensure_ascii=False)
    is_hf = source.kind == "hf"
    with progress.stage("reading the original tokenizer"):
        call, what = partial(read_reference, source), "loading the original tokenizer"
        tokens = run_child(call, what, work, progress, torch=is_hf)
    return _Original(
        *(job, source, origin, questions, work, progress, sha256_text(said), tokens),
        floats=None if is_hf else source.weights[0],
    )


def _card(file: ModelFile, original: _Original) -> Card:
    mark, job = fingerprint(file), original.job
    known = None if job.again else load_card(mark)
    if known is not None and known.key == original.key and (known.entry.speed or not job.speed):
        original.progress.note(f"{file.path.name} was measured before")
        if original.info is None:
            original.info = known.original
        card = replace(known, entry=replace(known.entry, path=file.path.name))
    else:
        card = _measured(file, mark, original)
    card = _with_caches(card, file, original)
    save_card(file.path, card)  # the rows may take long, and end with an error
    if job.ask is not None and card.entry.fidelity is not None:
        if (floats := _floats(original)) is None:
            raise ToolError(f"--prompts: no runtime has the original: {original.no_floats}")
        card = replace(card, entry=replace(card.entry, rows=job.ask(floats, file.path)))
        save_card(file.path, card)
    return card


def _with_caches(card: Card, file: ModelFile, original: _Original) -> Card:
    """The card with those types of the cache that are not on it yet; of a file that runs, and whose
    runtime has them."""
    job = original.job
    if not job.kv_types or card.entry.fidelity is None or "kv_type" not in backend_of(file).knows:
        return card
    reference = _distributions(original, min(job.context, file.context_length))
    tokens = reference.windows.length
    found = dict(card.caches) if card.cache_tokens == tokens else {}
    for kind in dict.fromkeys(("f16", *job.kv_types)):
        if kind in found:
            continue
        what = f"comparing {file.path.name} with a {kind} cache with the original"
        found[kind] = original.told(what, partial(built_child.fidelity, file.path, reference, kind))
    return replace(card, caches=found, cache_tokens=tokens)


def _measured(file: ModelFile, mark: str, original: _Original) -> Card:
    path = file.path
    kind = format_of(path) or "gguf"
    faults, notes = list[str](), list[str]()
    parity: TokenParity | None = None
    try:
        with original.progress.stage(f"comparing the tokens of {path.name}"):
            compared = compare_built(path, original.tokens, original.work)
    except ToolError as error:
        faults.append(f"tokens: they cannot be compared: {error}")
    else:
        parity = compared.parity
        notes += [compared.note] if compared.note else []
        if compared.differences:
            faults.append(
                f"tokens: {parity.differences} of {parity.lines} lines give other ones than the"
                f" original\n{shown_differences(compared, path.name)}"
            )
    rendered, wrong = compare_templates(file.chat_template, original.tokens.template)
    faults += [f"chat template: {text}" for text in wrong]
    weights: int | None = None
    if kind == "gguf":
        if len(read_parts(path)[1]) > 1:
            notes.append("weights are not compared: the file is split into parts")
        elif (floats := _floats(original)) is not None:
            weights = _weights(path, floats, original, faults, notes)
        else:
            notes.append(original.no_floats)
    entry = FileEntry(
        format="onnx" if kind == "onnx" else "gguf",
        recipe=path.name,
        bits=0,
        path=path.name,
        bytes=file.nbytes,
        sha256={},
        source=original.origin,
        tools=versions([kind]),
        token_parity=parity,
        notes=tuple(notes),
        measurement=original.key,
        bits_per_weight=_bits(path, original),
    )
    try:
        what = f"loading {path.name} and asking it a question"
        original.told(what, partial(built_child.ask, path))
    except ToolError as error:
        faults.append(f"it does not run: {error}")
    else:
        entry = _figures(path, entry, original, faults)
    info = original.info or _bare(original)
    return Card(mark, original.key, entry, info, rendered, weights, tuple(faults))


def _figures(path: Path, entry: FileEntry, original: _Original, faults: list[str]) -> FileEntry:
    """``entry`` with its divergence, answers and speed."""
    reference = _reference(original)
    try:
        what = f"comparing {path.name} with the original"
        fidelity = original.told(what, partial(built_child.fidelity, path, reference))
        if not (math.isfinite(fidelity.kl_mean) and math.isfinite(fidelity.perplexity.value)):
            faults.append("it gives no finite probabilities")
            return entry
        entry = replace(entry, fidelity=fidelity)
        if original.info is not None and original.info.quality is not None:
            what = f"asking {path.name} {len(original.questions)} graded questions"
            asked = partial(built_child.accuracy, path, original.questions)
            entry = replace(entry, quality=original.told(what, asked))
        if original.job.speed:
            what = f"measuring the speed of {path.name}"
            entry = replace(entry, speed=original.told(what, partial(built_child.speed, path)))
    except ToolError as error:
        faults.append(str(error))
    return entry


def _bits(path: Path, original: _Original) -> float | None:
    with contextlib.suppress(IngotError):
        return bits_per_weight(path, original.source.parameters)
    return None


def _bare(original: _Original) -> ModelInfo:
    source = original.source
    return ModelInfo(
        source.name,
        source.architecture,
        source.parameters,
        bytes=source.bytes,
        measurement=original.key,
    )


# The gates


def compare_templates(mine: str | None, theirs: str | None) -> tuple[TokenParity | None, list[str]]:
    """How many conversations both templates were given, of which so many came out differently,
    and the first in words. None where the original has no template."""
    if theirs is None:
        return None, []
    if mine is None:
        return TokenParity(0, 0), ["the file has none, the original has one"]
    apart, talks = list[str](), json.loads(_TALKS.read_bytes())
    for talk in talks:
        one, other = _rendered(mine, *talk), _rendered(theirs, *talk)
        if one != other:
            at = first_apart(one, other)
            part = slice(max(0, at - 20), at + 40)
            apart.append(f"{one[part]!r} in place of {other[part]!r}")
    said = f"{len(apart)} of {len(talks)} conversations come out differently, such as "
    return TokenParity(len(talks), len(apart)), [said + first for first in apart[:1]]


def _rendered(template: str, messages: list[dict[str, Any]], more: dict[str, Any]) -> str:
    try:
        return render_chat(template, messages, bos_token="<bos>", eos_token="<eos>", **more)
    except RequestError:
        return "(refused)"


def _weights(
    path: Path, floats: Path, original: _Original, faults: list[str], notes: list[str]
) -> int | None:
    """How many tensors were compared; ``faults`` get what is wrong with settings, vocabulary and
    weights."""
    matrix, what = _matrix(original, floats), f"comparing the weights of {path.name}"
    found = other_settings(read_header(path), read_header(floats))
    faults += [f"settings: {one}" for one in found]
    try:
        compared = original.told(what, partial(compare_weights, path, floats, matrix))
    except ToolError as error:
        faults.append(f"weights: they cannot be compared: {error}")
        return None
    faults += compared.faults
    if compared.left_out:
        names = ", ".join(compared.left_out[:3]) + " ..." * (len(compared.left_out) > 3)
        notes.append(f"only one of the files has these tensors so: {names}")
    return compared.compared


# What the original gives


def _floats(original: _Original) -> Path | None:
    """The original as a GGUF file of half precision, which is kept; None where that cannot be
    made."""
    if original.floats is None and not original.no_floats:
        what = "converting the original to GGUF, half precision"
        out = _kept(original.origin.hash, sorted(versions(["gguf"]).items())) / "original.gguf"
        try:
            if not out.is_file():
                require_room(out.parent.parent, _HALF * original.source.parameters, what)
                with original.progress.stage(what), _made(out.parent) as made:
                    made.mkdir()
                    given = original.source.folder, made / out.name, original.tokens
                    export_f16(*given, original.work, original.progress)
            out.parent.touch()
            original.floats = out
        except ToolError as error:
            logger.debug("no conversion: %s", error)
            said = str(error).splitlines()[0]
            original.no_floats = f"weights are not compared: the original is not converted ({said})"
    return original.floats


def _kept(*parts: object) -> Path:
    """A folder for what all of ``parts`` decide."""
    return cache_dir() / "measure" / sha256_text(repr(parts))[:32]


def _matrix(original: _Original, floats: Path) -> Path | None:
    """An importance matrix of the original over the text; None where the text is too short."""
    if original.matrix is None:
        out, text = original.work / "matrix.gguf", original.work / "text.txt"
        text.write_text(read_text(original.job.text, original.job.limit).content, encoding="utf-8")
        call = partial(compute, floats, text, out, _FEWEST)
        original.told("looking which weights the text needs", call)
        original.matrix = out
    return original.matrix if original.matrix.is_file() else None


def _reference(original: _Original) -> FloatReference:
    """The original's distributions over the text and its answers, of an earlier run if it has
    made them."""
    if original.reference is None:
        original.reference = _distributions(original, WINDOW)
        info = replace(_bare(original), perplexity=original.reference.perplexity)
        original.info = replace(info, quality=_answers(original))
    return original.reference


def _distributions(original: _Original, window: int) -> FloatReference:
    """The original's distributions over pieces of ``window`` tokens."""
    text, limit = original.job.text, original.job.limit
    tools = sorted(versions(["gguf"]).items())
    more = [window] if window != WINDOW else []
    folder = _kept(original.origin.hash, read_text(text).sha256, limit, tools, *more)
    try:
        found = load_reference(folder)
        original.progress.note("the original's distributions are those of an earlier run")
        folder.touch()
    except ToolError:
        with _made(folder) as made:
            call = partial(float_child.refer, original.source, made, text, limit, window)
            original.told("running the original over the text", call, own=True)
        found = load_reference(folder)
    return found


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """A folder that takes the place of ``folder`` when it is whole; the oldest beside it go."""
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        yield made
        shutil.rmtree(folder, ignore_errors=True)
        made.replace(folder)
    others = [one for one in folder.parent.iterdir() if not one.name.startswith(".")]
    for old in sorted(others, key=lambda one: one.stat().st_mtime, reverse=True)[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _answers(original: _Original) -> Quality | None:
    """How many of the graded questions the original answers rightly; None where there are none,
    or it has no chat template."""
    questions = original.questions
    if not questions or original.tokens.template is None:
        return None
    what = f"asking the original {len(questions)} graded questions"
    return original.told(what, partial(float_child.accuracy, original.source, questions), own=True)


def bounds_passed(card: Card, max_kl: float | None, max_kl99: float | None) -> list[str]:
    """The user's bounds that the file is beyond, in words. Raises UsageError for one that is
    none."""
    fidelity, found = card.entry.fidelity, []
    for name, bound, value in (
        ("mean KL divergence", max_kl, fidelity.kl_mean if fidelity else math.inf),
        ("99% KL divergence", max_kl99, fidelity.kl_p99 if fidelity else math.inf),
    ):
        if bound is not None and not 0 < bound < math.inf:
            raise UsageError(f"a bound of KL divergence is above 0, not {bound}")
        if bound is not None and not value <= bound:
            found.append(f"{name} {value:.4g}, the bound is {bound:.4g}")
    return found
