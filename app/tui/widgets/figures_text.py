"""An answer's figures, and what became of it, in words; keys as ``keys.told`` takes them."""

from app.chat.figures import FEW
from app.chat.store.records import Message, Role, State
from app.figures import duration, rate

_ENDINGS = {
    "stop": "ended by itself",
    "length": "reached the maximum length",
    "context": "the context was full",
    "deadline": "its time was up",
    "cancelled": "stopped",
    "error": "failed",
}
_GO_ON = "[chat.continue ctrl+g] continues it, [chat.regenerate ctrl+r] starts over."

_STATES = {
    State.STOPPED: f"Stopped. {_GO_ON}",
    State.CUT: "Cut off at the maximum length. [chat.continue ctrl+g] continues it.",
    State.LOST: "Ingot ended while this was being written; what had come by then is here."
    f" {_GO_ON}",
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
    computed = figures.prompt_tokens - figures.cached_tokens
    if figures.prefill_tps is not None and computed >= FEW:
        parts.append(f"prefill {rate(figures.prefill_tps)} ({computed:,} tokens)")
    elif figures.cached_tokens:
        cached = f"{figures.cached_tokens:,}" if computed > 0 else "all"
        parts.append(f"prompt {_tokens(figures.prompt_tokens)}, {cached} cached")
    parts.append(_tokens(figures.completion_tokens))
    parts.append(_ENDINGS.get(figures.finish_reason, figures.finish_reason))
    return " · ".join(parts)


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def state_text(message: Message) -> str:
    """What an unfinished answer is, and what one can do; empty when there is nothing to say."""
    figures = message.figures
    said = _STATES.get(message.state, "")
    if message.state is State.FAILED:
        why = f": {message.error}" if message.error else ""
        said = f"Failed{why}. [chat.regenerate ctrl+r] tries again."
    elif message.state is State.CUT and figures and figures.finish_reason == "context":
        said = (
            "Cut off: the context is full. Leave something out ([chat.continue ctrl+g] offers it)"
            " to continue."
        )
    if message.dropped:
        said = f"{said} Left out of what the model is sent.".strip()
    return said


def header_text(message: Message, index: int, count: int) -> str:
    """Who wrote it, and which of its branches this is."""
    who = "You" if message.role is Role.USER else message.model or "Assistant"
    return f"{who}   {index}/{count} ([chat.before alt+←] [chat.after alt+→])" if count > 1 else who
