"""A job in four lines: what it does, how far it is, how fast, with what."""

from app.batch.watch.view import JobView, Phase
from app.figures import rate
from app.tui.widgets.gauge import gauge

_GAUGE = 22


def totals_lines(view: JobView) -> list[str]:
    """Four lines; the last one may be empty."""
    share = view.done / view.rows if view.rows else None
    return [
        f"{_phase(view)} · {view.output}",
        f"{gauge(share, _GAUGE)} {view.counts}",
        _speeds(view),
        view.resources or _known(view),
    ]


def _phase(view: JobView) -> str:
    if view.part_read < 1 and view.phase is not Phase.RUNNING:
        return f"reading the journal ({100 * view.part_read:.0f}%)"
    return f"{view.phase.upper()}" if view.own else f"{view.phase.upper()} (watched)"


def _speeds(view: JobView) -> str:
    parts = []
    for name, now, mean in (
        ("prefill", view.prefill_now, view.prefill),
        ("decode", view.decode_now, view.decode),
    ):
        if now is not None and mean is not None:
            parts.append(f"{name} {rate(now)} (all {rate(mean)})")
        elif mean is not None:
            parts.append(f"{name} {rate(mean)}")
        elif now is not None:
            parts.append(f"{name} {rate(now)}")
    return " · ".join(parts)


def _known(view: JobView) -> str:
    if not view.prompt_tokens:
        return ""
    return f"{view.prompt_tokens:,} prompt and {view.output_tokens:,} answer tokens so far"
