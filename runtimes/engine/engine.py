"""``Engine``: one thread that owns one runner and serves any number of callers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from runtimes.api import EngineApi, T, TextEncoder
from runtimes.checks import check_adapter, check_room
from runtimes.engine.core import EngineCore
from runtimes.engine.draft import Draft
from runtimes.engine.loading import load_with_draft
from runtimes.engine.metrics import EngineStats, ratio
from runtimes.engine.prefix_pool import Prefix
from runtimes.engine.sequence import RequestState, Sink
from runtimes.engine.session import header_of, read_session, write_session
from runtimes.errors import IngotError, RequestError
from runtimes.grammars import check_request, deep_stacks
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import prefix_room
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model, stretched
from runtimes.request import FinishReason, Request
from runtimes.runner import Runner
from runtimes.sampling.grammar import GrammarCompiler, MatcherMaker
from runtimes.sampling.thoughts import ThoughtTokens
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.stream import Stream

logger = logging.getLogger(__name__)

Command = Callable[[], None]

# How long the batching strategies that wait for company sleep before they look again.
_NAP_S = 0.005


class Engine(TextEncoder, EngineApi):
    """Submit requests from any thread; every native call happens on the engine's own."""

    def __init__(
        self,
        model: ModelFile,
        runner: Runner,
        settings: RunnerSettings,
        scheduling: SchedulerSettings,
        draft: Draft | None,
    ) -> None:
        self._model = model
        self.tokenizer = runner.tokenizer
        self._runner = runner
        self._settings = settings
        room = scheduling.prefix_bytes
        if room is None:
            room = prefix_room(memory_now()[1])
        self._grammars = GrammarCompiler(self.tokenizer)
        self._thoughts = functools.cache(functools.partial(ThoughtTokens, self.tokenizer))
        self._core = EngineCore(runner, settings, scheduling, room, draft)
        self._wake = threading.Condition()
        self._commands: deque[Command] = deque([self._core.warm_up])
        self._digests: dict[str, str] = {}  # checksums of the files of adapters, by their names
        self._compiling: list[RequestState] = []  # requests whose constraints are being compiled
        self._embedding: deque[RequestState] = deque()  # texts to embed
        self._compiler = ThreadPoolExecutor(1, "ingot-constraints")
        self._closing = self._drain = self._freed = False
        self._vocabulary = threading.Condition()  # guards how many use the tokenizer's native part
        self._encoding = 0
        self._thread = threading.Thread(target=self._run, name="ingot-engine", daemon=True)
        with deep_stacks():  # constraints are compiled and followed there
            self._compiler.submit(int)  # starts its thread
            self._thread.start()

    @classmethod
    def load(
        cls,
        path: str | Path,
        settings: RunnerSettings | None = None,
        scheduling: SchedulerSettings | None = None,
    ) -> Engine:
        """Load the model at ``path`` on its runtime.

        Raises ModelError, RuntimeMissingError or OutOfMemoryError.
        """
        settings = settings or RunnerSettings()
        model = stretched(read_model(path), settings.rope)
        runner, draft = load_with_draft(model, settings)
        return cls(model, runner, settings, scheduling or SchedulerSettings(), draft)

    @property
    def model(self) -> ModelFile:
        """The loaded file."""
        return self._model

    @property
    def context(self) -> int:
        """Tokens that one request may hold, prompt and completion together."""
        return self._runner.capabilities.context

    @property
    def slots(self) -> int:
        """Requests that run at the same time."""
        return self._runner.capabilities.slots

    @property
    def vocab_size(self) -> int:
        """Ids from 0 to below this may be submitted."""
        return min(self._runner.capabilities.vocab_size, self.tokenizer.vocab_size)

    @property
    def pid(self) -> int | None:
        """The process that holds the model: this one."""
        return os.getpid()

    def encoded(self, function: Callable[..., T], *arguments: Any) -> T:
        """See ``TextEncoder``; the model is not freed meanwhile. Raises RequestError when it has
        been."""
        with self._vocabulary:
            if self._freed:
                raise RequestError("the engine is closed")
            self._encoding += 1
        try:
            return function(self.tokenizer, *arguments)
        finally:
            with self._vocabulary:
                self._encoding -= 1
                self._vocabulary.notify_all()

    def submit(self, request: Request) -> Stream:
        """See ``EngineApi.submit``."""
        if not request.embed:
            self.model.require_writer()
        grammar = check_request(request, self.context, self.vocab_size)
        stream = Stream(request.id, self.cancel)
        self.submit_to(request, stream, grammar)
        return stream

    def submit_to(self, request: Request, sink: Sink, grammar: str | None) -> None:
        """Like ``submit``; the answer goes to ``sink``, which is called on the engine's thread.

        ``grammar`` is what ``check_request`` gave, perhaps in a process that knew a larger context.
        """
        check_room(request, self.context)
        self._require_adapter(request.adapter)
        state = RequestState(request, sink, time.monotonic(), self.tokenizer, grammar)
        self._post(lambda: self._take(state), refuse_when_closing=True)

    @property
    def adapters(self) -> frozenset[str]:
        """See ``EngineApi.adapters``."""
        return frozenset(self._digests)

    def _require_adapter(self, name: str | None) -> None:
        if name is not None and name not in self._digests:
            known = ", ".join(sorted(self._digests)) or "none"
            raise RequestError(f"no adapter {name!r} is loaded; there is: {known}")

    def load_adapter(self, name: str, path: Path) -> None:
        """See ``EngineApi.load_adapter``."""
        self._call(lambda: self._load_adapter(name, path))

    def unload_adapter(self, name: str) -> None:
        """See ``EngineApi.unload_adapter``."""
        self._call(lambda: self._unload_adapter(name))

    def cancel(self, request_id: str) -> None:
        """Stop a request; what it has so far becomes its completion. Unknown ids are ignored."""
        self._post(lambda: self._cancel(request_id))

    def stats(self) -> EngineStats:
        """A snapshot of the figures; callable from any thread."""
        kv, scheduler, compiling = self._core.kv, self._core.scheduler, len(self._compiling)
        capabilities, running = kv.capabilities, kv.running
        decoding = sum(one.decoding for one in running)
        return EngineStats(
            slots=self.slots,
            context=self.context,
            queued=scheduler.waiting + compiling + len(self._embedding),
            running=len(running),
            prefilling=len(running) - decoding,
            decoding=decoding,
            cached_tokens=kv.found_tokens,
            kv_tokens=kv.held_tokens(),
            kv_capacity=capabilities.kv_tokens or self.slots * self.context,
            prefix_bytes=kv.pool.nbytes,
            prefix_hit_rate=ratio(kv.found_tokens, kv.prompt_tokens),
            preemptions=scheduler.preemptions,
            graphs_reused=self._core.graphs_reused,
            gpu_layers=capabilities.gpu_layers,
            compiling=compiling,
            draft=self._core.draft,
            **self._core.metrics.figures(),
        )

    def trim(self) -> int:
        """Drop every cached prefix; return how many bytes of keys and values that freed."""
        return self._call(self._core.kv.clear)

    def save_session(self, tokens: Sequence[int], path: Path, adapter: str | None = None) -> int:
        """See ``EngineApi.save_session``."""
        wanted = Prefix(adapter, list(tokens))
        found, digest = self._call(
            lambda: (self._core.kv.save_prefix(wanted), self._digest(adapter))
        )
        if found is None:
            raise RequestError("nothing of this conversation is cached: there is nothing to save")
        kept, data = found
        write_session(path, header_of(self.model, self._settings.kv_type, digest), kept, data)
        return len(kept)

    def load_session(self, path: Path, adapter: str | None = None) -> list[int]:
        """See ``EngineApi.load_session``; RequestError also from a reproducible engine."""
        if self._settings.reproducible:
            raise RequestError(
                "reproducible answers need every prompt computed in one way: no session is loaded"
            )
        digest = self._digest(adapter)
        tokens, data = read_session(path, header_of(self.model, self._settings.kv_type, digest))
        prefix = Prefix(adapter, tokens)

        def put() -> bool:  # between two steps the adapter may have become another one
            return digest == self._digest(adapter) and self._core.kv.pool.put(prefix, data)

        if not self._call(put):
            raise RequestError(
                f"{path} holds {len(data):,} bytes of keys and values, more than the prefix cache "
                "may keep"
            )
        return list(tokens)

    def close(self, *, drain: bool = False) -> None:
        """End the engine: finish what was submitted (``drain``) or cancel it. Idempotent."""
        with self._wake:
            self._drain, self._closing = drain, True  # in this order: both are read without a lock
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _post(self, command: Command, *, refuse_when_closing: bool = False) -> None:
        with self._wake:
            if self._closing and refuse_when_closing:
                raise RequestError("the engine is closed")
            self._commands.append(command)
            self._wake.notify()

    def _call(self, command: Callable[[], T]) -> T:
        """Run ``command`` on the engine's thread between two steps, and wait for its result."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(command())
            except Exception as error:
                outcome.set_exception(error)

        self._post(run, refuse_when_closing=True)
        return outcome.result()

    # What follows runs on the engine's thread only.

    def _run(self) -> None:
        reason, error = FinishReason.CANCELLED, None
        try:
            while self._wait_for_work():
                embedded = self._embed_next()  # one at a time: what is answered goes on
                if not self._core.step() and not embedded:
                    time.sleep(_NAP_S)
        except Exception as problem:
            logger.exception("the engine's thread failed")
            reason, error = FinishReason.ERROR, f"the engine failed: {problem}"
        finally:
            with self._wake:
                self._closing = True  # from here on submit refuses
                commands, self._commands = self._commands, deque()
            _carry_out(commands)
            for state in [*self._compiling, *self._embedding]:
                state.give_up(reason, error)
            self._core.end_all(reason, error)
            self._compiler.shutdown(cancel_futures=True)  # it uses the tokenizer
            with self._vocabulary:
                self._freed = True
                self._vocabulary.wait_for(lambda: not self._encoding)
                self._core.close()

    def _wait_for_work(self) -> bool:
        """Take over posted commands, asleep while there is nothing to do. False: end."""
        with self._wake:
            while (
                not (self._commands or self._embedding or self._closing)
                and self._core.scheduler.idle
            ):
                self._wake.wait()
            commands, self._commands = self._commands, deque()
        _carry_out(commands)
        # Commands that came meanwhile count: a request may be among them.
        waiting = self._compiling or self._embedding or self._commands
        busy = not self._core.scheduler.idle or bool(waiting)
        return not self._closing or (self._drain and busy)

    def _take(self, state: RequestState) -> None:
        """Take a request in, once its constraint is compiled: that may take seconds."""
        if state.request.embed:
            self._embedding.append(state)
            return
        constraint = state.request.params.constraint
        state.new_matcher = self._grammars.known(constraint) if constraint else None
        if constraint is None or state.new_matcher is not None:
            self._add(state)
            return
        assert state.grammar is not None
        self._compiling.append(state)
        compiling = self._compiler.submit(self._grammars.compile, constraint, state.grammar)
        compiling.add_done_callback(lambda done: self._post(lambda: self._compiled(state, done)))

    def _compiled(self, state: RequestState, done: Future[MatcherMaker]) -> None:
        if state in self._compiling:  # nobody has cancelled it
            self._compiling.remove(state)
            self._add(state, done)

    def _add(self, state: RequestState, compiled: Future[MatcherMaker] | None = None) -> None:
        with _answered(state, "a request could not be taken in"):
            if compiled is not None:
                state.new_matcher = compiled.result()
            self._require_adapter(state.request.adapter)  # it may have been unloaded since
            if (thinking := state.request.thinking) is not None:
                state.thought_tokens = self._thoughts(thinking.form)
            self._core.add(state)

    def _digest(self, adapter: str | None) -> str:
        """The checksum of an adapter's file; nothing where there is to be none."""
        self._require_adapter(adapter)
        return self._digests[adapter] if adapter else ""

    def _load_adapter(self, name: str, path: Path) -> None:
        check_adapter(name, path, self._digests)
        if self._runner.adapters is None:
            raise RequestError(
                "this model takes no adapters: models that write texts do, ONNX graphs where"
                " onnxruntime-genai's builder made them, and not for reproducible answers. Others"
                " can be merged: quantize --lora"
            )
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._runner.adapters.load(name, path)
        self._digests[name] = digest

    def _unload_adapter(self, name: str) -> None:
        if self._runner.adapters is None or name not in self._digests:
            raise RequestError(f"there is no adapter {name!r} to unload")
        states = [*self._compiling, *self._core.requests]
        if used := sum(state.request.adapter == name for state in states):
            raise RequestError(
                f"{used} requests still use the adapter {name!r}: unload it when they have ended"
            )
        # What is cached of it would be taken for that of another one of its name.
        self._core.kv.clear()
        self._runner.adapters.unload(name)
        del self._digests[name]

    def _embed_next(self) -> bool:
        """Embed one text; False where none waits."""
        if not self._embedding:
            return False
        state = self._embedding.popleft()
        with _answered(state, "a text could not be embedded"):
            self._core.embed(state)
        return True

    def _cancel(self, request_id: str) -> None:
        for waiting in (self._compiling, self._embedding):
            for state in [one for one in waiting if one.request.id == request_id]:
                waiting.remove(state)
                state.give_up(FinishReason.CANCELLED)
        self._core.cancel(request_id)


@contextlib.contextmanager
def _answered(state: RequestState, failure: str) -> Iterator[None]:
    """An error within ends the request, and says why; one that is not for users is logged."""
    try:
        yield
    except IngotError as error:
        state.give_up(FinishReason.ERROR, str(error))
    except Exception as error:
        logger.exception(failure)
        state.give_up(FinishReason.ERROR, f"the engine failed: {error}")


def _carry_out(commands: Iterable[Command]) -> None:
    """Run each; one that fails keeps none behind it from running."""
    for command in commands:
        try:
            command()
        except Exception:
            logger.exception("a command failed")
