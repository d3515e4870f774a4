"""Every figure of a manifest as text, for the page and the model card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quantize.manifest import FileEntry, Manifest, ModelInfo
from quantize.report.facts import megabytes


@dataclass(frozen=True, slots=True)
class Figure:
    """A column: its heading, and the text for a file and for the original ("" : not measured)."""

    heading: str
    of: Callable[[FileEntry], str]
    original: Callable[[ModelInfo], str] = lambda _model: ""


def _fidelity(show: Callable[..., str]) -> Callable[[FileEntry], str]:
    return lambda entry: show(entry.fidelity) if entry.fidelity else ""


def _speed(name: str, show: Callable[[float], str]) -> Callable[[FileEntry], str]:
    def text(entry: FileEntry) -> str:
        value = getattr(entry.speed, name) if entry.speed else None
        return "" if value is None else show(value)

    return text


def _parity(entry: FileEntry) -> str:
    parity = entry.token_parity
    return f"{parity.lines - parity.differences}/{parity.lines}" if parity else ""


_ALL = (
    Figure("MB", lambda e: megabytes(e.bytes), lambda m: megabytes(m.bytes) if m.bytes else ""),
    Figure("lines with the same tokens", _parity),
    Figure(
        "accuracy",
        lambda e: f"{e.quality.task_accuracy:.1%}" if e.quality else "",
        lambda m: f"{m.quality.task_accuracy:.1%}" if m.quality else "",
    ),
    Figure(
        "perplexity",
        _fidelity(lambda f: f"{f.perplexity.value:.4g} ± {f.perplexity.error:.2g}"),
        lambda m: f"{m.perplexity.value:.4g} ± {m.perplexity.error:.2g}" if m.perplexity else "",
    ),
    Figure("KL mean", _fidelity(lambda f: f"{f.kl_mean:.3g} ± {f.kl_error:.1g}")),
    Figure("KL 99%", _fidelity(lambda f: f"{f.kl_p99:.2g}")),
    Figure("same top token", _fidelity(lambda f: f"{f.same_top:.2%}")),
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
    """Sentences about what was measured and with what, as far as it was."""
    entries, said = manifest.files, []
    if not any(e.fidelity or e.speed or e.quality for e in entries):
        said.append("Nothing was measured: the files were built with --no-measure.")
    if fidelity := next((e.fidelity for e in entries if e.fidelity), None):
        text = fidelity.perplexity
        said.append(
            f"Every file ran on its own runtime over the same {text.tokens:,} token ids (text:"
            f" {text.text}, sha256 {text.text_sha256[:16]}). KL is the divergence of its next-token"
            " distribution from the float model's, in nats, mean and 99th percentile; same top"
            " token is how often both find the same token the most likely. ± is a standard error."
        )
    if any(e.speed for e in entries):
        said.append(
            "Speeds are tokens per second on the machine that built the files; another machine may"
            " rank them differently (`ingot plan` measures there). Peak MB is the most memory of"
            " the process, everything included."
        )
    if quality := next((e.quality for e in entries if e.quality), None):
        said.append(f"Accuracy is exact matches on {quality.questions} graded questions.")
    if parity := next((e.token_parity for e in entries if e.token_parity), None):
        said.append(
            f"Each file's tokenizer was compared with the original's on {parity.lines} lines."
        )
    tools = {name: v for e in entries for name, v in e.tools.items()}
    if tools:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(tools.items()))
        said.append(f"Built with {listed}.")
    return said
