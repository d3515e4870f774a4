"""An answer's figures, and what became of it, in words."""

from __future__ import annotations

from app.figures import duration, rate
from app.store.records import Message, Role, State

_ENDINGS = {
    "stop": "ended by itself",
    "length": "reached the most tokens allowed",
    "context": "the context was full",
    "deadline": "its time was up",
    "cancelled": "stopped",
    "error": "failed",
}


def figures_text(message: Message) -> str:
    """One line under an answer; empty when there are no figures."""
    figures = message.figures
    if figures is None:
        return ""
    parts = []
    if figures.decode_tps is not None:
        parts.append(rate(figures.decode_tps))
    parts.append(f"first token {duration(figures.ttft_s)}")
    if figures.prefill_tps is not None:
        computed = figures.prompt_tokens - figures.cached_tokens
        parts.append(f"prefill {rate(figures.prefill_tps)} ({computed:,} tokens)")
    elif figures.cached_tokens:
        parts.append(f"prompt {figures.prompt_tokens:,} tokens, all cached")
    parts.append(f"{figures.completion_tokens:,} tokens")
    parts.append(_ENDINGS.get(figures.finish_reason, figures.finish_reason))
    return " · ".join(parts)


def state_text(message: Message) -> str:
    """What an unfinished answer is, and what one can do; empty when there is nothing to say."""
    match message.state:
        case State.STOPPED:
            said = "Stopped. ctrl+g goes on from here, ctrl+r begins again."
        case State.CUT if message.figures and message.figures.finish_reason == "context":
            said = "Cut off: the context is full. Leave something out (ctrl+g offers it) to go on."
        case State.CUT:
            said = "Cut off at the most tokens allowed. ctrl+g goes on from here."
        case State.FAILED:
            why = f": {message.error}" if message.error else ""
            said = f"Failed{why}. ctrl+r tries again."
        case State.LOST:
            said = (
                "Ingot ended while this was being written; what had come by then is here. "
                "ctrl+g goes on from here, ctrl+r begins again."
            )
        case _:
            said = ""
    if message.dropped:
        said = f"{said} Left out of what the model is sent.".strip()
    return said


def header_text(message: Message, index: int, count: int) -> str:
    """Who wrote it, and which of its branches this is."""
    who = "You" if message.role is Role.USER else message.model or "Assistant"
    return f"{who}   {index}/{count} (alt+←→)" if count > 1 else who
