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
from app.serve.errors import error_response
from app.serve.generate import Generation, Generator, error_of, while_connected
from app.serve.observe import Observer


async def answer_several(
    request: Request, generator: Generator, observer: Observer, name: str | None, tasks: list[Task]
) -> Response:
    """Choices in the order of the prompts, and of each one's samples."""
    begun: list[Generation] = []

    async def run() -> list[Answer]:
        for task in tasks:
            work = generator.begin(name, partial(_same, task), beside=bool(begun))
            begun.append(await work)
        observer.begin(request, begun[0])
        return list(await asyncio.gather(*(one.answer() for one in begun)))

    try:
        answers = await while_connected(request, run())
    finally:
        for one in begun:
            observer.end(one)
            one.close()
    for answer in answers:
        if (problem := error_of(answer)) is not None:
            return error_response(problem)
    return JSONResponse(_joined(answers, begun[0].served.called))


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
