"""Whether an engine of some size can serve a request."""

from __future__ import annotations

from runtimes.engine.constraint import check
from runtimes.errors import RequestError
from runtimes.request import Request, SamplingParams


def check_params(params: SamplingParams, vocab_size: int) -> None:
    """Raises RequestError for parameters that fit no model with ``vocab_size`` tokens."""
    for token, _ in params.logit_bias:
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"logit_bias names the token id {token}; this model has ids 0..{vocab_size - 1}"
            )
    if params.constraint is not None:
        check(params.constraint)


def check_prompt(request: Request, context: int, vocab_size: int) -> None:
    """Raises RequestError for a prompt that leaves no room for a token in ``context``, or that has
    an id which is not below ``vocab_size``.
    """
    if len(request.prompt) >= context:
        raise RequestError(
            f"the prompt has {len(request.prompt):,} tokens; the context holds {context:,} and one "
            "must be left for the answer"
        )
    if min(request.prompt) < 0 or max(request.prompt) >= vocab_size:
        raise RequestError(f"the prompt has a token id outside 0..{vocab_size - 1}")


def check_request(request: Request, context: int, vocab_size: int) -> None:
    """Raises RequestError for a request that an engine of this size cannot serve."""
    check_prompt(request, context, vocab_size)
    check_params(request.params, vocab_size)
