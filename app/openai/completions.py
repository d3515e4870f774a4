"""Fields of /v1/completions alone: several prompts in a body, and ``echo``, which repeats a prompt
before its answer, with the log-probabilities of the prompt's tokens.
"""

from dataclasses import replace
from typing import Any

from app.openai.answer import Answer, Choice, TokenLogprobs, logprob_entries
from app.openai.request import HINTS, are_ids, body_task
from app.openai.task import Task
from app.openai.validation import (
    MOST_ANSWERS,
    MOST_PROMPTS,
    Given,
    InputError,
    check_bounds,
    check_count,
    require_object,
    switch,
)
from runtimes.request import MOST_TOP_LOGPROBS, Completion, Request, SamplingParams


def has_several(body: Given) -> bool:
    """Whether a body has more than one prompt."""
    prompts = body.get("prompt")
    return isinstance(prompts, list) and len(prompts) > 1 and type(prompts[0]) is not int


def completion_tasks(
    body: Any, defaults: SamplingParams, *, served: bool = True, strict: bool = False
) -> list[Task]:
    """A task for each prompt of a ``body``; ``served`` and ``strict`` as in ``body_task``. Raises
    InputError."""
    require_object(body, "body")
    check_bounds(body, "body")
    prompts = body.get("prompt")
    several = isinstance(prompts, list) and bool(prompts) and type(prompts[0]) is not int
    if several:
        check_count(len(prompts), "prompt", "prompts", MOST_PROMPTS)
        samples = body.get("best_of") or body.get("n") or defaults.samples
        if type(samples) is int:  # another is refused where it is read
            asked = len(prompts) * min(samples, 10**9)
            check_count(asked, "prompt times n", "answers", MOST_ANSWERS)
    echo = switch(body, "echo")
    if echo and body.get("suffix"):
        raise InputError("invalid_value", "echo and suffix cannot both be given")
    if echo:
        defaults = replace(defaults, prompt_logprobs=_top(body))
    # What is ignored is looked at once, not for each prompt.
    rest = {name: value for name, value in body.items() if name not in HINTS | {"echo"}}
    tasks = []
    for number, prompt in enumerate(prompts if several else [prompts]):
        if isinstance(prompt, list) and not are_ids(prompt):
            where = f"prompt.{number}" if several else "prompt"
            raise InputError("wrong_type", f"{where} must be a text or a list of token ids")
        one = {**rest, "prompt": prompt}
        task = body_task(one, "completions", defaults, served=served, strict=strict)
        tasks.append(replace(task, sampling=task.sampling or defaults) if echo else task)
    return tasks


def _top(body: Given) -> int:
    """How many likeliest tokens an echoed prompt has; a wrong number is refused where the answer's
    own are read."""
    top = body.get("logprobs")
    return top if type(top) is int and 0 <= top <= MOST_TOP_LOGPROBS else 0


def echoed(answer: Answer, text: str | None, request: Request, completion: Completion) -> Answer:
    """The answer with the prompt before it: ``text``, or that of its tokens."""
    pieces, scores = completion.token_bytes or {}, completion.prompt_logprobs or ()
    if text is None:
        said = b"".join(pieces.get(token, b"") for token in request.prompt)
        text = said.decode("utf-8", errors="replace")
    prompt = logprob_entries(request.prompt, scores, completion.prompt_top_logprobs, pieces)
    made = answer.choices or [answer.only]
    choices = [
        _with_prompt(choice, text, prompt if request.params.logprobs else None, sample)
        for choice, sample in zip(made, completion.choices, strict=True)
    ]
    first = choices[0]
    return replace(
        answer,
        response=first["text"],
        logprobs=first.get("logprobs"),
        choices=choices if answer.choices else None,
    )


def _with_prompt(
    choice: Choice, text: str, prompt: TokenLogprobs | None, sample: Completion
) -> Choice:
    whole: Choice = {"text": text + choice["text"], "finish_reason": choice["finish_reason"]}
    if prompt is not None:
        # All of the answer's tokens, also the one that ended it: who sums up the prompt's leaves
        # out as many as were asked for.
        pieces, found = sample.token_bytes or {}, sample.logprobs or ()
        own = logprob_entries(sample.token_ids, found, sample.top_logprobs, pieces)
        whole["logprobs"] = [*prompt, *own]
    return whole
