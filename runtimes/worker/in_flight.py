"""Requests that are in the hands of a worker process."""

import time
from dataclasses import dataclass, field

from runtimes.request import Chunk, Completion, FinishReason, Request, Timings, Usage
from runtimes.stream import Stream
from runtimes.worker.wire import ChunkItem


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request, and what has come of it so far. ``cancelled`` means that nobody wants more."""

    request: Request
    stream: Stream
    submitted: float = field(default_factory=time.monotonic)
    first: float = 0.0
    cancelled: bool = False
    chunks: list[Chunk] = field(default_factory=list)

    def take(self, item: ChunkItem) -> None:
        """Hand on a chunk."""
        chunk = Chunk(item[1], item[2], item[3])
        self.first = self.first or time.monotonic()
        self.chunks.append(chunk)
        self.stream.put(chunk)

    def give_up(self, reason: FinishReason, error: str | None, *, retryable: bool = False) -> None:
        """End it from this side, with the text that has come."""
        if self.cancelled:
            reason, error, retryable = FinishReason.CANCELLED, None, False
        now = time.monotonic()
        own = [chunk for chunk in self.chunks if chunk.index == 0]
        tokens = tuple(token for chunk in own for token in chunk.token_ids)
        prompt = len(self.request.prompt)
        first = self.first or now
        self.stream.finish(
            Completion(
                id=self.request.id,
                text="".join(chunk.text for chunk in own),
                token_ids=tokens,
                finish_reason=reason,
                usage=Usage(prompt, len(tokens)),
                timings=Timings(
                    queue_s=0.0,
                    prefill_s=first - self.submitted,
                    ttft_s=first - self.submitted,
                    decode_s=now - first,
                    total_s=now - self.submitted,
                    prompt_tokens=prompt,
                    completion_tokens=len(tokens),
                ),
                error=error,
                retryable=retryable,
            )
        )
