"""A body with several prompts: all of them run at once, and one body answers them."""

import asyncio
import secrets
from collections.abc import Sequence
from functools import partial

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from app.openai.answer import Answer
from app.openai.response import answer_body
from app.openai.task import Task
from app.serve.generate import Generator, error_of, while_connected
from app.serve.observe import Observer


async def answer_several(
    request: Request, generator: Generator, observer: Observer, name: str | None, tasks: list[Task]
) -> Response:
    """Choices in the order of the prompts, and of each one's samples.

    As many answers run at the same time as the model has slots, so that such a body takes no more
    of the queue than as many clients do.
    """
    first = await while_connected(request, generator.begin(name, partial(_same, tasks[0])))
    observer.begin(request, first)
    model, slots = first.served.called, first.served.engine.slots
    room = asyncio.Semaphore(max(1, slots // first.request.params.samples))

    async def answer(task: Task) -> Answer:
        async with room:
            if task is tasks[0]:
                generation = first
            else:
                work = generator.begin(name, partial(_same, task), beside=True)
                generation = await work
            try:
                answer = await generation.answer()
            finally:
                observer.end(generation)
                generation.close()
        if (problem := error_of(answer)) is not None:
            raise problem
        return answer

    async def run() -> list[Answer]:
        async with asyncio.TaskGroup() as group:
            works = [group.create_task(answer(task)) for task in tasks]
        return [work.result() for work in works]

    try:
        answers = await while_connected(request, run())
    except ExceptionGroup as errors:  # the first one has ended the others
        raise errors.exceptions[0] from None
    finally:
        first.close()
    return JSONResponse(_joined(answers, model))


def _same(task: Task) -> Task:
    return task


def _joined(answers: Sequence[Answer], model: str) -> dict[str, object]:
    """One body, without times: they would be of many requests."""
    bodies = [answer_body(one, "completions", secrets.token_hex(12), model) for one in answers]
    choices = [choice for body in bodies for choice in body["choices"]]
    for index, choice in enumerate(choices):
        choice["index"] = index
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    usage = {name: sum(body["usage"][name] for body in bodies) for name in names}
    whole = {name: value for name, value in bodies[0].items() if name != "timings"}
    return {**whole, "choices": choices, "usage": usage}
