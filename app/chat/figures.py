"""The figures that are kept with an answer."""

from app.chat.store.records import Figures, Message, State
from runtimes.request import Completion, FinishReason

UNFINISHED = "unfinished"  # the reason in the figures of an answer that was still coming

FEW = 16  # tokens; the time of fewer is that of one step, whatever it computes

# What an answer has become.
STATES = {
    FinishReason.STOP: State.DONE,
    FinishReason.LENGTH: State.CUT,
    FinishReason.CONTEXT: State.CUT,
    FinishReason.DEADLINE: State.CUT,
    FinishReason.CANCELLED: State.STOPPED,
    FinishReason.ERROR: State.FAILED,
}


def figures_of(completion: Completion) -> Figures:
    """As the engine has measured them; no prefill speed where too few tokens were computed."""
    usage, timings = completion.usage, completion.timings
    computed = usage.prompt_tokens - usage.cached_tokens
    return Figures(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        ttft_s=timings.ttft_s,
        prefill_tps=timings.prefill_tps if computed >= FEW else None,
        decode_tps=timings.decode_tps,
        total_s=timings.total_s,
        finish_reason=str(completion.finish_reason),
    )


def continued(before: Figures | None, now: Figures) -> Figures:
    """Of an answer that went on: the prompt's are those of the beginning, tokens and seconds are
    added, and the decode rate is that of all its tokens after the first of each part."""
    if before is None:
        return now
    steps = [(f.completion_tokens - 1, f.decode_tps) for f in (before, now) if f.decode_tps]
    seconds = sum(tokens / tps for tokens, tps in steps)
    return Figures(
        prompt_tokens=before.prompt_tokens,
        cached_tokens=before.cached_tokens,
        completion_tokens=before.completion_tokens + now.completion_tokens,
        ttft_s=before.ttft_s,
        prefill_tps=before.prefill_tps,
        decode_tps=sum(tokens for tokens, _ in steps) / seconds if seconds > 0 else None,
        total_s=before.total_s + now.total_s,
        finish_reason=now.finish_reason,
    )


def can_continue(message: Message) -> bool:
    """Whether an answer ended before its end, with something to go on from."""
    ended = (State.STOPPED, State.CUT, State.FAILED, State.LOST)
    return message.state in ended and bool(message.token_ids or message.text)
