"""Model of the report: figures as text, the front, the recommendation, and the chart of size
against divergence with its limits and ticks. The renderers are the page, the pictures, the card
and the table.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quantize.manifest import (
    Allocation,
    Fidelity,
    FileEntry,
    FileSpeeds,
    Manifest,
    ModelInfo,
)
from quantize.recipes import parse_variant
from runtimes.models.gguf import TENSOR_TYPES
from runtimes.planner.candidates import BUSY

_LEAST_KL = 1e-7  # below it, single precision decides: drawn and compared as equal
_OTHERS = 0.1  # of the processor: what other programs may take while a speed is measured


def comparable_parts(manifest: Manifest) -> tuple[Manifest, ...]:
    """``manifest`` in parts whose figures may be compared: measured on the same text, with the
    same programs, on the same machine.

    The first is the one of the original's figures, or the largest, with the files that were not
    measured; in the others the original has no figures.
    """
    parts: dict[str, list[FileEntry]] = {}
    for entry in manifest.files:
        if entry.fidelity or entry.speed or entry.quality:
            parts.setdefault(_measurement(entry), []).append(entry)
    own = _measurement(manifest.model)
    order = sorted(parts, key=lambda key: (key != own, -len(parts[key])))
    first = order[0] if order else own
    measured_otherwise = [e for key in order[1:] for e in parts[key]]
    main = tuple(e for e in manifest.files if e not in measured_otherwise)
    bare = replace(manifest.model, quality=None, perplexity=None)
    model = manifest.model if own == first else bare
    return (
        replace(manifest, model=model, files=main),
        *(replace(manifest, model=bare, files=tuple(parts[key])) for key in order[1:]),
    )


def _measurement(of: FileEntry | ModelInfo) -> str:
    """Key of a measurement; where an older program left none, the text tells measurements apart."""
    if isinstance(of, ModelInfo):
        text = of.perplexity
    else:
        text = of.fidelity.perplexity if of.fidelity else None
    return of.measurement or (f"{text.text_sha256} {text.tokens}" if text else "")


def megabytes(size: int) -> str:
    """Bytes as MB, with a decimal below 100."""
    value = size / 1e6
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def title(entry: FileEntry) -> str:
    """Text such as "onnx-int4 (ONNX, 5.3 bits a weight)"."""
    bits = f", {entry.bits_per_weight:.1f} bits a weight" if entry.bits_per_weight else ""
    return f"{entry.recipe} ({entry.format.upper()}{bits})"


def divergence(entry: FileEntry) -> float | None:
    """Mean KL divergence in nats, at least 1e-7; None when not measured or not a number."""
    if entry.fidelity is None or not math.isfinite(entry.fidelity.kl_mean):
        return None
    return max(entry.fidelity.kl_mean, _LEAST_KL)


def scatter(speed: FileSpeeds) -> float | None:
    """The widest range of the laps of one figure, as a part of the figure; None where no laps are
    recorded."""
    wide = (
        (most - least) / value
        for name, (least, most) in speed.ranges.items()
        if isinstance(value := getattr(speed, name, None), int | float) and value
    )
    return max(wide, default=None)


def is_steady(speed: FileSpeeds) -> bool:
    """Whether the machine was quiet, as far as is recorded: only then are speeds compared."""
    wide = scatter(speed)
    return wide is not None and wide <= BUSY and (speed.others or 0.0) <= _OTHERS


def decode_speed(entry: FileEntry, rows: int = 1) -> float | None:
    """Tokens a second with 1 or 16 rows; None where they were measured on a busy machine."""
    if entry.speed is None or not is_steady(entry.speed):
        return None
    return (entry.speed.decode_tps_1 if rows == 1 else entry.speed.decode_tps_16) or None


def batch_speed(entry: FileEntry) -> float | None:
    """Tokens a second with 16 rows; None where they were measured on a busy machine."""
    return decode_speed(entry, 16)


def pareto_front(entries: Sequence[FileEntry]) -> list[FileEntry]:
    """The files for which no other is as small and diverges less; by size."""
    front: list[FileEntry] = []
    measured = [(e.bytes, kl, e) for e in entries if (kl := divergence(e)) is not None]
    for _, kl, entry in sorted(measured, key=lambda item: item[:2]):
        if not front or kl < (divergence(front[-1]) or 0.0):
            front.append(entry)
    return front


def recommended(entries: Sequence[FileEntry]) -> FileEntry | None:
    """The file on the front that is best on the whole; None when nothing was measured.

    Size, divergence, and both speeds together count alike: each as its place between the best and
    the worst of the measured files, on a logarithmic scale. Speeds count only if all are steady.
    """
    measured = [entry for entry in entries if divergence(entry) is not None]
    front = pareto_front(measured)
    if not front:
        return None
    places = [
        _places([max(entry.bytes, 1) for entry in measured]),
        _places([divergence(entry) or _LEAST_KL for entry in measured]),
    ]
    speeds = [[tps for e in measured if (tps := at(e))] for at in (decode_speed, batch_speed)]
    if all(len(known) == len(measured) for known in speeds):
        places += [[-place / 2 for place in _places(known)] for known in speeds]
    scores = {e.recipe: sum(own) for e, *own in zip(measured, *places, strict=True)}
    return min(front, key=lambda entry: (scores[entry.recipe], entry.bytes))


def _places(values: Sequence[float]) -> list[float]:
    """Place of each between the smallest, 0, and the largest, 1, on a logarithmic scale."""
    low, high = math.log(min(values)), math.log(max(values))
    return [(math.log(value) - low) / (high - low) if high > low else 0.0 for value in values]


def sentence(manifest: Manifest, entry: FileEntry) -> str:
    """Text such as "onnx-int4 (ONNX, 5.3 bits a weight): 3.1x smaller than the original, 2.0x
    faster here than q8_0, 96.8% same top token", as much of it as was measured. ``manifest`` has
    files of one measurement."""
    parts = []
    if manifest.model.bytes and entry.bytes:
        parts.append(f"{manifest.model.bytes / entry.bytes:.1f}x smaller than the original")
    largest = max(manifest.files, key=lambda e: (decode_speed(e) is not None, e.bytes))
    mine, other = decode_speed(entry), decode_speed(largest)
    if mine and other and largest != entry:
        ratio = mine / other
        faster = f"{ratio:.1f}x faster" if ratio >= 1 else f"{1 / ratio:.1f}x slower"
        parts.append(f"{faster} here than {largest.recipe}")
    elif entry.speed:
        busy = " (the machine was busy)" if entry.speed.ranges and not mine else ""
        parts.append(f"{entry.speed.decode_tps_1:,.0f} tokens a second here{busy}")
    if entry.fidelity:
        parts.append(f"{entry.fidelity.same_top:.1%} same top token")
    if entry.quality:
        parts.append(f"{entry.quality.task_accuracy:.1%} of the graded questions right")
    return f"{title(entry)}: {', '.join(parts)}" if parts else title(entry)


_EXTREMES: tuple[tuple[str, Callable[[FileEntry], float | None], Any], ...] = (
    ("closest to the original", divergence, min),
    ("smallest", lambda e: float(e.bytes), min),
    ("fastest for one conversation", decode_speed, max),
    ("fastest for 16 at once", batch_speed, max),
)


def alternatives(manifest: Manifest) -> list[tuple[str, FileEntry]]:
    """The extremes: what each is best at, and the file. A speed is compared only if the speeds of
    all files are steady."""
    found = []
    for label, measure, best in _EXTREMES:
        known = [(value, e) for e in manifest.files if (value := measure(e)) is not None]
        timed = [e for e in manifest.files if e.speed] if best is max else []
        if len(known) > 1 and len(known) >= len(timed):
            found.append((label, best(known, key=lambda item: item[0])[1]))
    return found


def outdone(manifest: Manifest) -> list[str]:
    """Sentences about the files that are larger than another and further from the original."""
    said, front = [], pareto_front(manifest.files)
    for entry in manifest.files:
        mine = divergence(entry) or 0.0
        better = [e.recipe for e in front if e.bytes < entry.bytes and (divergence(e) or 0) < mine]
        said += [
            f"{entry.recipe} is larger than {recipe} and further from the original."
            for recipe in better[-1:]
        ]
    return said


# Every figure of a manifest as text, for the page and the model card.


APART = (
    "These figures are of another measurement (text, number of tokens, programs or machine) than"
    " those above and must not be compared with them."
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A column: its heading, and the text for a file and for the original ("" : not measured)."""

    heading: str
    of: Callable[[FileEntry], str]
    original: Callable[[ModelInfo], str] = lambda _model: ""
    wide: bool = False  # whether only a wide terminal shows it


def of_fidelity(show: Callable[[Fidelity], str]) -> Callable[[FileEntry], str]:
    """The text of a file whose fidelity was measured."""
    return lambda entry: show(entry.fidelity) if entry.fidelity else ""


def _speed(
    name: str, show: Callable[[float], str] = "{:,.0f}".format
) -> Callable[[FileEntry], str]:
    def text(entry: FileEntry) -> str:
        value = getattr(entry.speed, name) if entry.speed else None
        if entry.speed is None or value is None:
            return ""
        low, high = map(show, entry.speed.ranges.get(name, (value, value)))
        laps = f" ({low} to {high})" if low != high else ""
        mark = " *" if "tps" in name and not is_steady(entry.speed) else ""
        return f"{show(value)}{laps}{mark}"

    return text


SIZE = Figure("MB", lambda e: megabytes(e.bytes), lambda m: megabytes(m.bytes) if m.bytes else "")
BITS = Figure(
    "bits a weight",
    lambda e: f"{e.bits_per_weight:.1f}" if e.bits_per_weight else "",
    lambda m: f"{m.bytes * 8 / m.parameters:.1f}" if m.bytes and m.parameters else "",
)
PARITY = Figure(
    "lines with the same tokens",
    lambda e: f"{p.lines - p.differences}/{p.lines}" if (p := e.token_parity) else "",
)
ACCURACY = Figure(
    "accuracy",
    lambda e: f"{e.quality.task_accuracy:.1%}" if e.quality else "",
    lambda m: f"{m.quality.task_accuracy:.1%}" if m.quality else "",
)
ROWS = Figure("own rows", lambda e: str(e.rows or ""))
_ALL = (
    SIZE,
    BITS,
    PARITY,
    ACCURACY,
    ROWS,
    Figure(
        "perplexity",
        of_fidelity(lambda f: f"{f.perplexity.value:.4g} ± {f.perplexity.error:.2g}"),
        lambda m: f"{m.perplexity.value:.4g} ± {m.perplexity.error:.2g}" if m.perplexity else "",
    ),
    Figure("KL mean", of_fidelity(lambda f: f"{f.kl_mean:.3g} ± {f.kl_error:.1g}")),
    Figure("KL 99%", of_fidelity(lambda f: f"{f.kl_p99:.2g}")),
    Figure("same top token", of_fidelity(lambda f: f"{f.same_top:.2%}")),
    Figure("prefill tok/s", _speed("prefill_tps")),
    Figure("decode tok/s", _speed("decode_tps_1")),
    Figure("16 rows: prefill", _speed("prefill_tps_16")),
    Figure("16 rows: decode", _speed("decode_tps_16")),
    Figure("load s", _speed("load_s", "{:,.2f}".format)),
    Figure("peak MB", _speed("peak_bytes", lambda b: megabytes(int(b)))),
)


def figures_of(entries: Sequence[FileEntry]) -> list[Figure]:
    """The columns that at least one file has."""
    return [figure for figure in _ALL if any(figure.of(entry) for entry in entries)]


def texts_of(
    columns: Sequence[Figure], model: ModelInfo, entries: Sequence[FileEntry]
) -> tuple[list[str], list[list[str]]]:
    """Text of every column for the original, and for each file; "-" where nothing was measured."""
    original = [column.original(model) or "-" for column in columns]
    return original, [[column.of(entry) or "-" for column in columns] for entry in entries]


def how_measured(manifest: Manifest) -> list[str]:
    """Sentences about what was measured and with what, as far as it was. ``manifest`` has files of
    one measurement (`comparable_parts`)."""
    entries, said = manifest.files, []
    if not any(e.fidelity or e.speed or e.quality for e in entries):
        said.append("Nothing was measured: the files were built with --no-measure.")
    texts = list(dict.fromkeys(_text(e.fidelity) for e in entries if e.fidelity))
    if texts:
        which = "Every file" if all(e.fidelity for e in entries) else "Every file with a KL"
        said.append(
            f"{which} ran on its own runtime over {'the same ' * (len(texts) == 1)}"
            f"{' or '.join(texts)}. KL is the divergence of its next-token distribution from the"
            " original's, in nats, mean and 99th percentile; same top token is how often both"
            " find the same token the most likely. ± is a standard error."
        )
    said += _speeds(entries)
    questions = sorted({e.quality.questions for e in entries if e.quality})
    if questions:
        said.append(f"Accuracy is exact matches on {_numbers(questions)} graded questions.")
    lines = sorted({e.token_parity.lines for e in entries if e.token_parity})
    if lines:
        said.append(
            f"Each file's tokenizer was compared with the original's on {_numbers(lines)} lines."
        )
    if any(e.rows for e in entries):
        said.append(
            "Own rows are those of the user to which the file gives the original's answer, greedily"
            " and to the letter; ↓ right answers that became wrong, ↑ wrong ones that became right."
        )
    tools: dict[str, set[str]] = {}
    for name, version in (pair for e in entries for pair in e.tools.items()):
        tools.setdefault(name, set()).add(version)
    if tools:
        listed = (f"{name} {' and '.join(sorted(found))}" for name, found in sorted(tools.items()))
        said.append(f"Built with {', '.join(listed)}.")
    return said


def _text(fidelity: Fidelity) -> str:
    text = fidelity.perplexity
    pieces = f" in {text.windows:,} window{'s' * (text.windows > 1)}" if text.windows else ""
    return f"{text.tokens:,} token ids{pieces} (text: {text.text}, sha256 {text.text_sha256[:16]})"


def _speeds(entries: Sequence[FileEntry]) -> list[str]:
    timed = [(e.recipe, e.speed) for e in entries if e.speed]
    if not timed:
        return []
    said = [
        "Speeds are tokens per second on the machine that measured the files, the median lap and in"
        " brackets the slowest and the fastest; another machine may rank them differently (`ingot"
        " plan` measures there). Peak MB is the most memory of the process, everything included."
    ]
    busy = [f"{recipe} ({_why(speed)})" for recipe, speed in timed if not is_steady(speed)]
    if busy:
        said.append(
            f"* Not compared with other speeds: {', '.join(busy)}. On a quiet machine"
            " `--measure-again` measures what is built once more."
        )
    return said


def _why(speed: FileSpeeds) -> str:
    wide = scatter(speed)
    if wide is None:
        return "its laps were not recorded"
    others = f", other programs took {speed.others:.0%} of the processor" if speed.others else ""
    return f"laps scattered by {wide:.0%}{others}"


def _numbers(values: Sequence[int]) -> str:
    return " or ".join(f"{value:,}" for value in values)


_MOST = 1e30  # nats; a scale of powers has an end


@dataclass(frozen=True, slots=True)
class Point:
    """A measured file: size in MB, divergence in nats, tokens a second."""

    label: str
    megabytes: float
    divergence: float
    speed: float | None
    on_front: bool


@dataclass(frozen=True, slots=True)
class SizeChart:
    """Points by size, the limits of both axes, and their ticks."""

    points: tuple[Point, ...]
    x: tuple[float, float]
    y: tuple[float, float]
    x_ticks: tuple[float, ...]
    y_ticks: tuple[float, ...]


def make_chart(entries: Sequence[FileEntry]) -> SizeChart | None:
    """The chart of the measured files, or None when there are none."""
    front = pareto_front(entries)
    points = [
        Point(e.recipe, e.bytes / 1e6, kl, decode_speed(e), e in front)
        for e in entries
        if (kl := divergence(e)) is not None and kl < _MOST
    ]
    if not points:
        return None
    points.sort(key=lambda point: point.megabytes)
    width = points[-1].megabytes * 1.12 or 1.0
    low = math.log10(min(point.divergence for point in points))
    high = math.log10(max(point.divergence for point in points))
    margin = max(0.12 * (high - low), 0.15)
    y = (10 ** (low - margin), 10 ** (high + margin))
    return SizeChart(tuple(points), (0.0, width), y, _steps(width), _powers(*y))


def _steps(most: float) -> tuple[float, ...]:
    """Round numbers from 0, about five of them."""
    raw = most / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    return tuple(step * i for i in range(int(most / step) + 1))


def _powers(low: float, high: float) -> tuple[float, ...]:
    """1, 2 and 5 times powers of ten; powers alone over more than two decades."""
    digits = (1,) if math.log10(high / low) > 2 else (1, 2, 5)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = (d * 10.0**power for power in range(first, last + 1) for d in digits)
    return tuple(tick for tick in ticks if low <= tick <= high)


# Types of a file that was built for a target: layers against roles.


_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_BITS = {name.lower(): size * 8 / weights for name, weights, size in TENSOR_TYPES.values()}
_ROW = 1024  # weights that the scales of a variant are counted for
_FEWEST, _MOST = 2.0, 8.5  # bits between which colours differ


def savings(manifest: Manifest) -> list[str]:
    """Predicted losses of files of the same sizes as the recipes', if every tensor's type is
    chosen; nothing where that was not measured."""
    said = []
    for entry in manifest.files:
        if entry.allocation or entry.fidelity is None:
            continue
        model = manifest.model
        mixes = model.mixes if entry.format == "gguf" else model.onnx_mixes
        smaller = [kl for size, kl in mixes if size <= entry.bytes]
        flag = "--max-size" if entry.format == "gguf" else "--to onnx --max-size"
        if smaller and min(smaller) < entry.fidelity.kl_mean:
            said.append(
                f"{entry.recipe} loses {entry.fidelity.kl_mean:.2g} nats; a file of its"
                f" {megabytes(entry.bytes)} MB whose types are chosen ({flag}) is predicted to"
                f" lose {min(smaller):.2g}"
            )
    return said


def summary(entry: FileEntry, allocation: Allocation) -> str:
    """Sentence with the file's predicted and measured loss, and the gain of a larger one."""
    parts = [f"predicted to lose {allocation.predicted:.2g} nats"]
    if entry.fidelity:
        found = entry.fidelity
        parts.append(f"measured {found.kl_mean:.2g} (error {found.kl_error:.1g})")
    if allocation.step_s:
        parts.append(f"{allocation.step_s * 1e3:.3g} ms a step of {allocation.rows} predicted")
    if allocation.next_mb is not None:
        parts.append(f"the next megabyte would bring it to {allocation.next_mb:.2g}")
    if allocation.cache_loss is not None:
        added = f"keys and values of {allocation.cache} add {allocation.cache_loss:.2g}"
        parts.append(f"{added} behind {allocation.cache_tokens:,} tokens")
    parts.append(f"{allocation.tries} file{'s' * (allocation.tries > 1)} tried")
    return ", ".join(parts)


def by_layer(types: Mapping[str, str]) -> tuple[dict[int, dict[str, str]], dict[str, str]]:
    """Types by layer and role, and those of other tensors by name."""
    layers: dict[int, dict[str, str]] = {}
    others = {}
    for name, kind in types.items():
        if found := _LAYER.fullmatch(name):
            layers.setdefault(int(found[1]), {})[found[2]] = kind
        else:
            others[name] = kind
    return {n: dict(sorted(layers[n].items())) for n in sorted(layers)}, others


def bits_of(kind: str) -> float:
    """That a weight takes in a type of GGUF, or by a variant of ONNX."""
    return _BITS[kind] if kind in _BITS else parse_variant(kind).bits_per_weight(_ROW)


def depth(kind: str) -> float:
    """How dark a type is drawn: 0 for the fewest bits a weight, 1 for the most."""
    return (min(max(bits_of(kind), _FEWEST), _MOST) - _FEWEST) / (_MOST - _FEWEST)
