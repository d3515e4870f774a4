"""Token counts and times of a completion, for programs and for people; tables of figures."""

from collections.abc import Sequence
from typing import Any

from runtimes.request import Completion, Timings, Usage

_PLACES = {  # of each figure, after the point
    **dict.fromkeys(("queue_s", "prefill_s", "ttft_s", "tpot_s", "decode_s", "total_s"), 6),
    **dict.fromkeys(("prefill_tps", "decode_tps"), 2),
}
SEVERAL_A_STEP = (
    "forced_tokens",
    "proposed_tokens",
    "accepted_tokens",
    "drafted_tokens",
    "accepted_drafts",
)


def usage_json(usage: Usage) -> dict[str, int]:
    """Token counts, named as OpenAI's API names them."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    counts = {name: int(getattr(usage, name)) for name in names}
    if usage.thought_tokens:
        counts["reasoning_tokens"] = usage.thought_tokens
    return counts


def timings_json(timings: Timings) -> dict[str, float | None]:
    """Seconds to the microsecond, tokens per second to the hundredth; null where not defined.
    Forced and guessed tokens where there are any."""
    values = {name: getattr(timings, name) for name in _PLACES}
    found = {k: None if v is None else round(v, _PLACES[k]) for k, v in values.items()}
    several = {name: getattr(timings, name) for name in SEVERAL_A_STEP}
    return found | several if any(several.values()) else found


def figures_line(completion: Completion) -> str:
    """One line: first token, speeds, tokens, why it ended."""
    timings, usage = completion.timings, completion.usage
    parts = [f"first token {duration(timings.ttft_s)}"]
    if timings.prefill_tps is not None:
        parts.append(f"prefill {rate(timings.prefill_tps)} ({usage.prompt_tokens} tokens)")
    if timings.decode_tps is not None:
        parts.append(f"decode {rate(timings.decode_tps)} ({usage.completion_tokens} tokens)")
    else:
        parts.append(f"{usage.completion_tokens} tokens")
    if usage.thought_tokens:
        parts.append(f"{usage.thought_tokens} of thinking")
    if timings.forced_tokens:
        parts.append(f"{timings.forced_tokens} forced")
    if timings.proposed_tokens:
        guesses = f"{timings.accepted_tokens} of {timings.proposed_tokens} guesses right"
        if timings.drafted_tokens:
            guesses += f" (the draft's: {timings.accepted_drafts} of {timings.drafted_tokens})"
        parts.append(guesses)
    parts.append(f"total {duration(timings.total_s)}")
    where = " within the reasoning" if completion.thinks else ""
    parts.append(f"ended by {completion.finish_reason}{where}")
    return " · ".join(parts)


def rate(tokens_per_second: float) -> str:
    """Tokens per second with about three digits."""
    digits = 1 if tokens_per_second < 100 else 0
    return f"{tokens_per_second:,.{digits}f} tok/s"


def duration(seconds: float) -> str:
    """A time as people write it: 35 ms, 4.2 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def aligned(lines: Sequence[Sequence[str]], left: int = 2) -> list[str]:
    """Lines of cells as text; the first ``left`` columns are words, the others numbers."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def rounded(values: dict[str, Any], digits: int) -> dict[str, Any]:
    """An object for JSON whose numbers have at most so many decimals, also those in objects."""
    short = dict(values)
    for name, value in values.items():
        if isinstance(value, dict):
            short[name] = rounded(value, digits)
        elif isinstance(value, float):
            short[name] = round(value, digits)
    return short
