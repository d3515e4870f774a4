"""One prompt to several files, each in a process of its own; callers look at it now and then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.compare.answers import (
    PROBE,
    Agreement,
    CompareReport,
    Contender,
    Question,
    Side,
    SideState,
    agreement,
)
from app.here import real
from app.models.catalog import ModelEntry
from app.models.library import load_engine
from app.models.planning import LoadChoice, choose
from app.openai.prepare import prepare
from app.openai.task import Task
from app.options import PlanOptions
from quantize.disk import human
from quantize.quality.peak import peak_resident
from runtimes.errors import IngotError, RequestError
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import estimate
from runtimes.request import MOST_TOP_LOGPROBS, Chunk, Completion, FinishReason, SamplingParams
from runtimes.thinking import choice_of

if TYPE_CHECKING:
    from runtimes.worker.engine import WorkerEngine


logger = logging.getLogger(__name__)

# One file of a comparison: load it, warm it up, ask it. Blocking: for a thread of its own.


_WARM_TOKENS = 16
_FIGURES = "ttft_s prefill_tps decode_tps total_s".split()


class AskedFile:
    """The state of one file; any thread may take a ``snapshot`` or ``stop`` it."""

    def __init__(self, contender: Contender) -> None:
        self.needs = 0  # bytes of memory, once it is planned
        self._choice: LoadChoice | None = None
        self._lock = threading.RLock()
        label = contender.label or contender.model
        self._side = Side(contender=contender, label=label, state=SideState.WAITING)
        self._first = 0.0  # when the answer's first token came
        self._engine: WorkerEngine | None = None
        self._stopped = False
        self._halt: Callable[[], None] = lambda: None  # ends what it does now

    def snapshot(self) -> Side:
        """How far it is; figures of an answer under way are up to now."""
        with self._lock:
            if not self._side.state.ended:
                self._look_at_memory()
            return self._side

    def stop(self) -> None:
        """End the load or the answer; the text so far stays."""
        with self._lock:
            if self._side.state.ended:
                return
            self._stopped, halt = True, self._halt
            if self._side.state is SideState.WAITING:
                self._set(state=SideState.STOPPED)
        halt()

    def plan(self, free: int, beside: str) -> bool:
        """Choose what to load; whether there is room for it in ``free`` bytes. ``beside`` says what
        takes the rest. Never raises, nor does ``run``: what goes wrong is the side's error."""
        with self._failing():
            asked = self._side.contender
            choice = choose(asked.model, asked.options, PlanOptions(), "chat", slots=1)
            self.needs = estimate(choice.file, choice.settings).total
            if self.needs <= free:
                self._choice = choice
                return True
            self._end(f"it needs {human(self.needs)} of memory, {human(free)} are free{beside}")
        return False

    def run(self, question: Question) -> None:
        """Load what was planned, and ask; the engine stays open for ``likeliest``."""
        choice, begun = self._choice, time.monotonic()
        if choice is None or self._stopped:
            return
        file = choice.file
        unheeded = choice_of(file.chat_template, question.params.thinking).unknown
        self._set(
            state=SideState.LOADING, file=str(file.path), runtime=file.runtime, unheeded=unheeded
        )
        with self._failing():
            engine = load_engine(file, choice.settings, choice.scheduling, begun=self._begun)
            self._ask(engine, question, begun)

    def likeliest(self, index: int) -> None:
        """Ask once more for the token at ``index`` of the answer, with the likeliest ones: into
        ``Side.top``. Nothing happens where that cannot be asked any more."""
        engine, side = self._engine, self._side
        if engine is None or side.state is not SideState.DONE:
            return
        try:
            asked = SamplingParams(max_tokens=1, logprobs=True, top_logprobs=MOST_TOP_LOGPROBS)
            (found,) = engine.generate([[*side.prompt, *side.token_ids[:index]]], asked)
        except IngotError as error:
            logger.info("no log-probabilities of %s: %s", side.label, error)
            return
        if found.top_logprobs:
            self._set(top={**side.top, index: found.top_logprobs[0]})

    def close(self) -> None:
        """End the engine. Idempotent."""
        with self._lock:
            self._look_at_memory()
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _begun(self, engine: WorkerEngine) -> None:
        self._engine = engine
        self._halted_by(engine.close)  # nothing else ends a load

    def _halted_by(self, halt: Callable[[], None]) -> None:
        """Note what ends the work from now on, and do it where that was asked for before."""
        with self._lock:
            self._halt, stopped = halt, self._stopped
        if stopped:
            halt()

    def _look_at_memory(self) -> None:
        """The kernel keeps the peak (Linux), or the largest size that was seen counts."""
        if self._engine is not None and self._engine.pid is not None:
            before = self._side.peak_bytes or 0
            self._set(peak_bytes=max(before, peak_resident(self._engine.pid)) or None)

    def _ask(self, engine: WorkerEngine, question: Question, begun: float) -> None:
        asked = prepare(Task(), engine, question.params, messages=question.messages)
        probe = engine.encode(PROBE)
        # The first steps read the file; they are not the answer's.
        engine.generate([probe[:_WARM_TOKENS]], SamplingParams(max_tokens=2, ignore_eos=True))
        self._set(
            state=SideState.ANSWERING,
            load_s=time.monotonic() - begun,
            prompt=tuple(asked.ids),
            probe=tuple(probe),
        )
        stream = engine.submit(asked.request(followed=False))
        self._halted_by(stream.cancel)
        for chunk in stream:
            self._add(chunk)
        self._finish(stream.result())

    def _add(self, chunk: Chunk) -> None:
        ids, now = chunk.token_ids, time.monotonic()
        self._first = self._first or now
        part = "thought" if chunk.thought else "text"
        self._set(**{part: getattr(self._side, part) + chunk.text})
        side = self._side
        starts = (*side.starts, *[len(side.written) - len(chunk.text)] * len(ids))
        self._set(token_ids=(*side.token_ids, *ids), starts=starts)
        if len(starts) > 1 and now > self._first:
            speed = (len(starts) - 1) / (now - self._first)
            self._set(tokens=len(starts), decode_tps=speed)

    def _finish(self, completion: Completion) -> None:
        ids, timings = completion.token_ids, completion.timings
        with self._lock:
            self._look_at_memory()
            self._set(text=completion.text, thought=completion.thought or "")
            starts = self._side.starts
            starts += (len(self._side.written),) * (len(ids) - len(starts))
            self._set(
                **{name: getattr(timings, name) for name in _FIGURES},
                token_ids=tuple(ids),
                starts=starts,
                tokens=completion.usage.completion_tokens,
                thought_tokens=completion.usage.thought_tokens,
                finish_reason=str(completion.finish_reason),
            )
        lost = completion.finish_reason is FinishReason.CANCELLED and not self._stopped
        self._end("the engine stopped before the answer was complete" if lost else completion.error)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except IngotError as error:
            self._end(str(error))
        except Exception as error:
            logger.exception("comparing %s", self._side.label)
            self._end(f"internal error: {type(error).__name__}: {error}")

    def _end(self, error: str | None) -> None:
        if self._stopped:
            self._set(state=SideState.STOPPED, error=None)
        else:
            self._set(state=SideState.FAILED if error else SideState.DONE, error=error)

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._side = replace(self._side, **changes)


class Comparison:
    """Asks each file in a process of its own: one after another, so that none takes processor time
    from the one that is measured, or all ``together`` where there is room for that.

    Every method may be called from any thread and returns soon.
    """

    def __init__(
        self, contenders: Sequence[Contender], question: Question, *, together: bool = False
    ) -> None:
        """Raises RequestError for fewer than two files."""
        if len(contenders) < 2:
            raise RequestError("a comparison needs two files at least")
        self.question = question
        self.together = together
        self._files = [AskedFile(contender) for contender in contenders]
        self._thread = threading.Thread(target=self._run, daemon=True, name="compare")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End all files; the texts so far stay."""
        for file in self._files:
            file.stop()

    def join(self, timeout: float) -> bool:
        """Wait for the end; whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def poll(self) -> CompareReport:
        """Return the state of all files."""
        ended = self._thread.ident is not None and not self._thread.is_alive()
        sides = tuple(file.snapshot() for file in self._files)
        found = tuple(self._agreement(sides[0], other) for other in sides[1:])
        return CompareReport(self.question, sides, found, self.together, ended)

    def _run(self) -> None:
        first, *_ = self._files
        try:
            planned = self._planned()
            if self.together:
                with ThreadPoolExecutor(len(self._files)) as pool:
                    list(pool.map(lambda file: file.run(self.question), planned))
            for file in planned:
                if not self.together:
                    if file is not first and file.needs > memory_now()[1]:
                        first.close()  # idle it takes no time, but memory
                    file.run(self.question)
                if file is not first:
                    self._look_at_parting(first, file)
                    file.close()
        finally:
            for file in self._files:
                file.close()

    def _planned(self) -> list[AskedFile]:
        """Plan each file; return the files that can be read and have room."""
        free = memory_now()[1]
        found = []
        for file in self._files:
            if file.plan(free, " beside the others" if self.together else ""):
                found.append(file)
                free -= file.needs if self.together else 0
        return found

    def _look_at_parting(self, first: AskedFile, other: AskedFile) -> None:
        """Ask both for their likeliest tokens where the answers part."""
        found = self._agreement(first.snapshot(), other.snapshot())
        if found and found.parting and found.unit == "tokens":
            for file in (first, other):
                file.likeliest(found.parting.index)

    def _agreement(self, first: Side, other: Side) -> Agreement | None:
        return agreement(first, other) if self.question.greedy else None


def first_choice(entries: Sequence[ModelEntry], loaded: Path) -> list[ModelEntry]:
    """Two files to begin with: the loaded one and, of the same model, the one with the most bits,
    whose answers are nearest to the original's. Nothing when there is no such pair."""
    usable = [entry for entry in entries if entry.broken is None]
    mine = next((entry for entry in usable if real(entry.path) == real(loaded)), None)
    others = [e for e in usable if mine and e.name == mine.name and e.key != mine.key]
    if mine is None or not others:
        return []
    return [mine, max(others, key=lambda entry: (entry.bits or 0, entry.bytes or 0))]
