"""``Engine``: one thread that owns one runner and serves any number of callers."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from runtimes.chat import Message
from runtimes.errors import IngotError, RequestError
from runtimes.generation import Generation
from runtimes.load import load_runner
from runtimes.metrics import EngineStats, Metrics
from runtimes.modelfile import ModelFile
from runtimes.request import Completion, FinishReason, Request, SamplingParams
from runtimes.runner import Logits, Runner
from runtimes.sampling import log_probability, sample
from runtimes.scheduler import Scheduler, Step
from runtimes.settings import RunnerSettings
from runtimes.stream import Stream
from runtimes.tokenizer import NamedTokenizer, encode_chat

logger = logging.getLogger(__name__)


class Engine:
    """Submit requests from any thread; every native call happens on the engine's own.

    A context manager: leaving it cancels what still runs.
    """

    def __init__(self, model: ModelFile, runner: Runner, tokenizer: NamedTokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._runner = runner
        caps = runner.capabilities
        self._scheduler = Scheduler(
            slots=caps.slots, batch=caps.batch, mixed_batch=caps.mixed_batch
        )
        self._metrics = Metrics()
        self._generations: dict[str, Generation] = {}  # engine thread only, by request id
        self._by_row: dict[int, Generation] = {}  # id(row) -> generation
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._closing = self._drain = False
        self._thread = threading.Thread(target=self._run, name="ingot-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(cls, path: str | Path, settings: RunnerSettings | None = None) -> Engine:
        """Load the model at ``path`` on its runtime.

        Raises ModelError, RuntimeMissingError or OutOfMemoryError.
        """
        model = ModelFile.read(path)
        runner, tokenizer = load_runner(model, settings or RunnerSettings())
        return cls(model, runner, tokenizer)

    @property
    def context(self) -> int:
        """Tokens that one request may hold, prompt and completion together."""
        return self._runner.capabilities.context

    @property
    def slots(self) -> int:
        """Requests that run at the same time."""
        return self._runner.capabilities.slots

    def encode(self, text: str) -> list[int]:
        """Ids of a plain text, with the BOS token if the model wants one."""
        return self.tokenizer.encode(text, add_special=True, parse_special=True)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation through the model's chat template; raises RequestError."""
        return encode_chat(self.tokenizer, self.model.chat_template, messages)

    def submit(self, request: Request) -> Stream:
        """Queue a request; thread-safe, returns at once.

        Raises RequestError when the prompt leaves no room for a token, or the engine is closed.
        """
        if len(request.prompt) >= self.context:
            raise RequestError(
                f"the prompt has {len(request.prompt):,} tokens; the context holds "
                f"{self.context:,} and one must be left for the answer"
            )
        size = self._runner.capabilities.vocab_size
        if min(request.prompt) < 0 or max(request.prompt) >= size:
            raise RequestError(f"the prompt has a token id outside 0..{size - 1}")
        stream = Stream(request.id, self.cancel)
        generation = Generation(request, stream, submitted=time.monotonic())
        self._post(lambda: self._add(generation), refuse_when_closing=True)
        return stream

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Run a batch of token prompts to the end; completions in the order of the prompts."""
        params = params or SamplingParams()
        streams = [self.submit(Request(list(prompt), params)) for prompt in prompts]
        return [stream.result() for stream in streams]

    def cancel(self, request_id: str) -> None:
        """Stop a request; what it has so far becomes its completion. Unknown ids are ignored."""
        self._post(lambda: self._cancel(request_id))

    def stats(self) -> EngineStats:
        """A snapshot of the figures; callable from any thread."""
        return self._metrics.snapshot(
            slots=self.slots,
            context=self.context,
            queued=self._scheduler.waiting,
            running=len(self._scheduler.running),
        )

    def close(self, *, drain: bool = False) -> None:
        """End the engine: finish what was submitted (``drain``) or cancel it. Idempotent."""
        with self._wake:
            self._closing, self._drain = True, drain
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        """The engine itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close without draining."""
        self.close()

    def _post(self, command: Callable[[], None], *, refuse_when_closing: bool = False) -> None:
        with self._wake:
            if self._closing and refuse_when_closing:
                raise RequestError("the engine is closed")
            self._commands.append(command)
            self._wake.notify()

    # What follows runs on the engine's thread only.

    def _run(self) -> None:
        reason, error = FinishReason.CANCELLED, None
        try:
            while self._wait_for_work():
                self._step()
        except Exception as problem:
            logger.exception("the engine's thread failed")
            reason, error = FinishReason.ERROR, f"the engine failed: {problem}"
        finally:
            with self._wake:
                self._closing = True  # from here on submit refuses
                commands, self._commands = self._commands, deque()
            for command in commands:
                command()
            for generation in list(self._generations.values()):
                self._end(generation, reason, error)
            self._runner.close()

    def _wait_for_work(self) -> bool:
        """Take over posted commands, asleep while there is nothing to do. False: end."""
        with self._wake:
            while not self._commands and self._scheduler.idle and not self._closing:
                self._wake.wait()
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        return not self._closing or (self._drain and not self._scheduler.idle)

    def _add(self, generation: Generation) -> None:
        if generation.request.id in self._generations:
            generation.complete(FinishReason.ERROR, "a request with this id is already running")
            return
        generation.row = self._scheduler.add(generation.request)
        self._generations[generation.request.id] = generation
        self._by_row[id(generation.row)] = generation

    def _cancel(self, request_id: str) -> None:
        generation = self._generations.get(request_id)
        if generation:
            self._end(generation, FinishReason.CANCELLED)

    def _step(self) -> None:
        begin = time.perf_counter()
        now = time.monotonic()
        for row in self._scheduler.admit():
            self._by_row[id(row)].started = now
        step = self._scheduler.plan()
        if step is None:
            return
        try:
            native_begin = time.perf_counter()
            logits = self._runner.execute(step.plan)
            native = time.perf_counter() - native_begin
            tokens = self._sample(step, logits)
        except IngotError as error:
            self._fail(step, str(error))
            return
        except Exception as error:
            logger.exception("a step failed")
            self._fail(step, f"the engine failed in a step: {error}")
            return
        prompt = sum(len(r.tokens) for r in step.plan.rows) - sum(
            not row.prefilling for row in step.rows
        )
        decoded = sum(not row.prefilling for row in step.sampled)
        self._scheduler.commit(step, tokens)
        ended = self._accept(step, tokens)
        self._metrics.step(
            prompt=prompt,
            sampled=len(tokens),
            decoded=decoded,
            native=native,
            whole=time.perf_counter() - begin,
        )
        # Last, so that whoever sees a completion sees its tokens in the figures too.
        for generation, reason in ended:
            self._end(generation, reason)

    def _sample(self, step: Step, logits: Logits) -> list[int]:
        if not step.sampled:
            return []
        generations = [self._by_row[id(row)] for row in step.sampled]
        tokens = sample(logits, [g.sampler for g in generations])
        if any(g.request.params.logprobs for g in generations):
            for generation, value in zip(
                generations, log_probability(logits, tokens).tolist(), strict=True
            ):
                generation.logprobs.append(value)
        return [int(token) for token in tokens]

    def _accept(self, step: Step, tokens: list[int]) -> list[tuple[Generation, FinishReason]]:
        """Hand out the sampled tokens; return which requests end with them, and why."""
        ended = []
        for row, token in zip(step.sampled, tokens, strict=True):
            generation = self._by_row[id(row)]
            reason = generation.accept(token, self.tokenizer, self.context)
            if reason is not None:
                ended.append((generation, reason))
        return ended

    def _fail(self, step: Step, message: str) -> None:
        """End the rows of a failed step; the others go on."""
        for row in step.rows:
            self._end(self._by_row[id(row)], FinishReason.ERROR, message)

    def _end(self, generation: Generation, reason: FinishReason, error: str | None = None) -> None:
        row = generation.row
        self._generations.pop(generation.request.id, None)
        if row is not None:
            self._by_row.pop(id(row), None)
            self._scheduler.remove(row)
            if row.slot >= 0:
                try:
                    self._runner.trim(row.slot, 0)
                except IngotError as problem:
                    error = error or str(problem)
        generation.complete(reason, error)
