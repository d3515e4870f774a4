"""The door from an engine: from a task's completions to its answer."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from app.openai.answer import Answer, answer_of, figures_of
from app.openai.completions import echoed
from app.openai.embeddings import embedded
from app.openai.scoring import scored
from app.openai.task import Task
from app.openai.tool_parser import ToolParser
from runtimes.request import Completion, Request


def result(
    task: Task,
    requests: Sequence[Request],
    completions: Sequence[Completion],
    parser: Callable[[], ToolParser | None] = lambda: None,
) -> Answer:
    """The answer to ``task``, whose turns or parts were asked by ``requests``, one after another.
    Raises RequestError for what the model cannot give."""
    if not task.parts:
        return _with_echo(task, requests[-1], completions, parser)
    if task.parts[0].embed is not None:
        return embedded(task, completions)
    if task.parts[0].then is not None:
        return scored(task, completions)
    answers = [
        _with_echo(part, request, [completion], parser)
        for part, request, completion in zip(task.parts, requests, completions, strict=True)
    ]
    choices = [choice for answer in answers for choice in answer.choices or [answer.only]]
    return replace(answers[0], choices=choices, **figures_of(completions))


def _with_echo(
    task: Task,
    request: Request,
    completions: Sequence[Completion],
    parser: Callable[[], ToolParser | None],
) -> Answer:
    answer = answer_of(completions, parser)
    if request.params.prompt_logprobs is None:
        return answer
    return echoed(answer, task.turns[0] if task.turns else None, request, completions[-1])
