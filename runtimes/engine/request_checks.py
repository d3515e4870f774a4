"""Whether an engine of some size can serve a request."""

from runtimes.constraint import grammar_of
from runtimes.errors import RequestError
from runtimes.request import Request, SamplingParams


def check_params(params: SamplingParams, vocab_size: int) -> str | None:
    """The grammar of their constraint, if they have one.

    Raises RequestError for parameters that fit no model with ``vocab_size`` tokens.
    """
    for token, _ in params.logit_bias:
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"logit_bias names the token id {token}; this model has ids 0..{vocab_size - 1}"
            )
    return grammar_of(params.constraint) if params.constraint is not None else None


def check_room(request: Request, context: int) -> None:
    """Raises RequestError for a prompt that leaves no room for a token in ``context``."""
    if len(request.prompt) >= context:
        raise RequestError(
            f"the prompt has {len(request.prompt):,} tokens; the context holds {context:,} and one "
            "must be left for the answer"
        )


def check_request(request: Request, context: int, vocab_size: int) -> str | None:
    """The grammar of its constraint, if it has one. Raises RequestError for a request that an
    engine of this size cannot serve.
    """
    check_room(request, context)
    if min(request.prompt) < 0 or max(request.prompt) >= vocab_size:
        raise RequestError(f"the prompt has a token id outside 0..{vocab_size - 1}")
    return check_params(request.params, vocab_size)
