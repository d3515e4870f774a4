"""Every figure of a manifest as text, for the page and the model card."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quantize.manifest import Fidelity, FileEntry, FileSpeeds, Manifest, ModelInfo
from quantize.report.facts import is_steady, megabytes, scatter

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


def _speed(name: str, show: Callable[[float], str]) -> Callable[[FileEntry], str]:
    def text(entry: FileEntry) -> str:
        value = getattr(entry.speed, name) if entry.speed else None
        if entry.speed is None or value is None:
            return ""
        low, high = map(show, entry.speed.ranges.get(name, (value, value)))
        laps = f" ({low} to {high})" if low != high else ""
        mark = " *" if "tps" in name and not is_steady(entry.speed) else ""
        return f"{show(value)}{laps}{mark}"

    return text


def _parity(entry: FileEntry) -> str:
    parity = entry.token_parity
    return f"{parity.lines - parity.differences}/{parity.lines}" if parity else ""


SIZE = Figure("MB", lambda e: megabytes(e.bytes), lambda m: megabytes(m.bytes) if m.bytes else "")
BITS = Figure(
    "bits a weight",
    lambda e: f"{e.bits_per_weight:.1f}" if e.bits_per_weight else "",
    lambda m: f"{m.bytes * 8 / m.parameters:.1f}" if m.bytes and m.parameters else "",
)
PARITY = Figure("lines with the same tokens", _parity)
ACCURACY = Figure(
    "accuracy",
    lambda e: f"{e.quality.task_accuracy:.1%}" if e.quality else "",
    lambda m: f"{m.quality.task_accuracy:.1%}" if m.quality else "",
)
_ALL = (
    SIZE,
    BITS,
    PARITY,
    ACCURACY,
    Figure(
        "perplexity",
        of_fidelity(lambda f: f"{f.perplexity.value:.4g} ± {f.perplexity.error:.2g}"),
        lambda m: f"{m.perplexity.value:.4g} ± {m.perplexity.error:.2g}" if m.perplexity else "",
    ),
    Figure("KL mean", of_fidelity(lambda f: f"{f.kl_mean:.3g} ± {f.kl_error:.1g}")),
    Figure("KL 99%", of_fidelity(lambda f: f"{f.kl_p99:.2g}")),
    Figure("same top token", of_fidelity(lambda f: f"{f.same_top:.2%}")),
    Figure("prefill tok/s", _speed("prefill_tps", "{:,.0f}".format)),
    Figure("decode tok/s", _speed("decode_tps_1", "{:,.0f}".format)),
    Figure("16 rows: prefill", _speed("prefill_tps_16", "{:,.0f}".format)),
    Figure("16 rows: decode", _speed("decode_tps_16", "{:,.0f}".format)),
    Figure("load s", _speed("load_s", "{:,.2f}".format)),
    Figure("peak MB", _speed("peak_bytes", lambda b: megabytes(int(b)))),
)


def figures_of(entries: Sequence[FileEntry]) -> list[Figure]:
    """The columns that at least one file has."""
    return [figure for figure in _ALL if any(figure.of(entry) for entry in entries)]


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
