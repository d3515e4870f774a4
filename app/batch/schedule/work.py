"""What the parts of a job hand to each other: how rows are asked, and what came of them."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from app.batch.input.row import Row
from app.batch.report.answer_lengths import LengthCounts
from app.openai.answer import Answer
from app.prompts import PromptStyle
from runtimes.request import Completion, FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """How rows are asked."""

    sampling: SamplingParams  # of rows without their own, as is the style
    style: PromptStyle
    timeout_s: float | None = None  # for all turns of a row together
    retries: int = 1  # how often a row is asked again after a timeout or an error of the engine


@dataclass(slots=True)
class Counts:
    """What the job has done so far."""

    answered: int = 0
    failed: int = 0
    running: int = 0
    retried: int = 0
    crashes: int = 0  # deaths of the worker process
    prompt_tokens: int = 0  # tokens are of finished rows
    cached_tokens: int = 0
    completion_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # failures by their code
    working: tuple[int, ...] = ()  # the indexes of the rows that have a slot
    lengths: LengthCounts = field(default_factory=LengthCounts)  # of earlier runs too

    def finished(self, completions: Iterable[Completion], error: str | None = None) -> None:
        """Count a row with what it was answered, and the code of its error if it failed."""
        if error is None:
            self.answered += 1
        else:
            self.failed += 1
            self.errors[error] += 1
        for completion in completions:
            self.prompt_tokens += completion.usage.prompt_tokens
            self.cached_tokens += completion.usage.cached_tokens
            for choice in completion.choices:
                tokens = choice.usage.completion_tokens
                self.completion_tokens += tokens
                self.lengths.add(tokens, cut=choice.finish_reason is not FinishReason.STOP)


# Takes each finished row with its answer or error.
Deliver = Callable[[Row, Answer], None]
