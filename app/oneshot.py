"""Answer of `ingot run` to one prompt, streamed as it comes, with the calls of tools before it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from app.console import emit_thought, note
from app.figures import timings_json, usage_json
from app.openai.prepare import prepare
from app.openai.task import Task
from app.prompts import PromptStyle
from app.tools.calls import CallReader, CallState, ToolCall, call_messages, limit_of
from runtimes.api import EngineApi
from runtimes.chat import Message
from runtimes.models.modelfile import ModelFile
from runtimes.output import is_terminal
from runtimes.request import Completion, FinishReason, SamplingParams

if TYPE_CHECKING:  # nothing of it runs without tools
    from app.tools.servers import ToolServers

# A worker process that dies may die once more before it is started with safer settings.
_RETRIES = 2


@dataclass(frozen=True, slots=True)
class OneAnswer:
    """A completion; ``interrupted`` when Ctrl-C ended it early."""

    completion: Completion
    interrupted: bool = False
    text: str = ""  # without the calls in it
    calls: tuple[ToolCall, ...] = ()  # of this answer and those before it
    stopped: str | None = None  # why no answer follows the calls

    @property
    def failure(self) -> str | None:
        """Error inside the engine, or end of the calls, if there was one."""
        if self.completion.finish_reason is FinishReason.CANCELLED and not self.interrupted:
            return "the engine stopped before the answer was complete"
        return self.completion.error or self.stopped


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of one prompt: those of the servers ``names``."""

    servers: ToolServers
    names: list[str]
    required: bool  # the first answer has to be a call
    allowed: set[str]  # tools, or their servers, that are not asked for; "all" is every one
    quiet: bool

    def make(self, call: ToolCall, context: int) -> ToolCall:
        """Ask for the call and make it, for a model of this ``context``. Raises KeyboardInterrupt
        when Ctrl-C ends it."""
        if not self._permits(call):
            return call.ended(CallState.REFUSED, "the user did not allow it")
        self._tell(call)
        future = self.servers.call(call, context)
        try:
            made = future.result()
        finally:
            future.cancel()  # does nothing to a call that has ended
        self._tell(made)
        return made

    def _permits(self, call: ToolCall) -> bool:
        server = self.servers.server_of(call.name)
        if self.allowed & {"all", call.name, server}:
            return True
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            note(f"not allowed: {call.line} (--allow-tools {call.name} allows it)", style="red")
            return False
        note(f"{server}: {call.line}")
        emit_thought("Call it? yes, always or no [no]: ")
        line = sys.stdin.readline()  # a prompt of Typer's writes to stdout
        if not line:
            raise KeyboardInterrupt
        said = line.strip().lower()
        if said in ("a", "always"):
            self.allowed.add(call.name)
        return said in ("y", "yes", "a", "always")

    def _tell(self, call: ToolCall) -> None:
        """A call in a line, and what became of it."""
        if self.quiet:
            return
        if call.state is CallState.OPEN:
            note(f"→ {call.line}", style="dim")
        elif call.state is CallState.DONE:
            first = call.result.partition("\n")[0][:100]
            note(f"✓ {call.seconds:.1f} s, {len(call.result):,} characters: {first}", style="dim")
        else:
            note(f"✗ {call.seconds:.1f} s: {call.result[:1000]}", style="red")


@dataclass(frozen=True, slots=True)
class OneShot:
    """How a prompt is asked: ``emit`` takes the answer piece by piece, with a line end at its end,
    ``think`` the pieces of a thought before it. Calls of tools are made by ``use``, and an answer
    to their results follows."""

    engine: EngineApi
    style: PromptStyle
    params: SamplingParams
    adapter: str | None
    emit: Callable[[str], object]
    think: Callable[[str], object]
    use: ToolUse | None = None

    def ask(self, prompt: str, suffix: str | None = None) -> OneAnswer:
        """Ask ``prompt``, or for what stands between it and ``suffix``.

        Ctrl-C cancels it: what was generated so far is the answer. An error of ``emit``, such as a
        closed pipe, cancels it too and is raised. A request that the engine lost before anything
        was emitted is asked again.
        """
        task, use = Task(turns=(prompt,), suffix=suffix), self.use
        if use is None:
            return self._answer(task)
        settings, made = use.servers.settings, list[ToolCall]()
        tools = use.servers.tools(use.names)
        while True:
            required = use.required and not made
            task = replace(task, tools=tools and replace(tools, required=required))
            answer = self._answer(task)
            calls = list(answer.calls)
            ended = answer.completion.finish_reason is FinishReason.STOP
            if not calls or not ended:
                cut = "it ended within a call: allow more with --max-tokens"
                lost = answer.interrupted or answer.failure is not None
                stopped = cut if calls and not lost else None
                return replace(answer, calls=(*made, *calls), stopped=stopped)
            for number, call in enumerate(calls):
                if why := limit_of(call, made, settings.calls):
                    refused = call.ended(CallState.REFUSED, why)
                    left = (*made, refused, *calls[number + 1 :])
                    return replace(answer, calls=left, stopped=f"stopped: {why}")
                try:
                    calls[number] = use.make(call, self.engine.context)
                except KeyboardInterrupt:
                    return replace(answer, interrupted=True, calls=(*made, *calls[number:]))
                made.append(calls[number])
            task = Task(history=(*task.opening, *_said(answer, calls)))

    def _answer(self, task: Task) -> OneAnswer:
        said = prepare(task, self.engine, self.params, self.style)

        def show(text: str) -> str:
            if text:
                self.emit(text)
            return text

        for _ in range(1 + _RETRIES):
            stream = self.engine.submit(
                said.request(adapter=self.adapter, followed=task.tools is not None)
            )
            parser, reader = said.form.parser(), CallReader()
            interrupted, shown, thought = False, "", False
            try:
                for chunk in stream:
                    if chunk.thought:
                        thought = True
                        self.think(chunk.text)
                        continue
                    if thought:
                        self.think("\n\n")
                    thought = False
                    text = chunk.text if parser is None else reader.take(parser.feed(chunk.text))
                    shown = show(text) or shown
            except KeyboardInterrupt:
                interrupted = True
            finally:
                stream.cancel()  # does nothing to a stream that has ended
            completion = stream.result()
            if parser is not None:
                whole = completion.finish_reason is FinishReason.STOP
                shown = show(reader.end(parser, whole=whole)) or shown
            # Asked again only as long as nobody has seen a part of it.
            if shown or interrupted or not completion.retryable:
                break
        silent = bool(reader.calls) and not shown
        if interrupted or not (shown.endswith("\n") or silent):
            self.emit("\n")
        return OneAnswer(completion, interrupted, reader.text, tuple(reader.calls))


def _said(answer: OneAnswer, calls: Sequence[ToolCall]) -> list[Message]:
    """An answer with ``calls`` and their results, as the next prompt has them."""
    asked, returned = call_messages(calls)
    thought = answer.completion.thought
    more = {} if thought is None else {"reasoning_content": thought}
    return [
        {"role": "assistant", "content": answer.text.strip(), "tool_calls": asked, **more},
        *returned,
    ]


def result_json(answer: OneAnswer, model: ModelFile, adapter: str | None) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    completion = answer.completion
    result: dict[str, Any] = {
        "text": answer.text if answer.calls else completion.text,
        "finish_reason": str(completion.finish_reason),
        **({} if completion.thought is None else {"reasoning": completion.thought}),
        "usage": usage_json(completion.usage),
        "timings": timings_json(completion.timings),
        "model": {
            "name": model.name,
            "file": str(model.path),
            "architecture": model.architecture,
            "quantization": model.quantization,
            "bytes": model.nbytes,
        },
        "runtime": model.runtime,
    }
    if adapter is not None:
        result["adapter"] = adapter
    if answer.calls:
        result["tool_calls"] = [asdict(call) for call in answer.calls]
    if answer.failure is not None:
        result["error"] = answer.failure
    return result
