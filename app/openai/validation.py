"""The most that one request may bring, however large its body may be; how a value that is wrong is
told; and the fields of a body: those that are read, hints that change nothing, and those without
which the answer would be another one. Each dialect has one table of them.

Clients send more than any server knows. What they send for the provider's sake cannot make an
answer wrong: it is left out, and told once. What can is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runtimes.untrusted import Bounds, excess

JsonObject = dict[str, Any]
Given = Mapping[str, Any]  # an object of JSON that is only read

# A schema of 64 levels in a tool of a list, with room for the body around it.
BODY = Bounds(depth=80, values=4_000_000, characters=64 * 2**20)
TOOL = Bounds(depth=64, values=20_000, characters=2**18)  # all keys of its function
ARGUMENTS = Bounds(depth=64, values=100_000, characters=2**22)  # of an earlier call
MOST_MESSAGES = 4096
MOST_STOPS = 64
MOST_STOP_CHARACTERS = 8192  # of all stop strings together
MOST_PROMPTS = 256
MOST_ANSWERS = 256  # prompts times samples
MOST_CONTINUATIONS = 256
MOST_INPUTS = 2048
MOST_BIASES = 1024
MOST_TOOLS = 128
MISSING = object()
_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no answer: ``code`` is for programs, ``message`` for people."""

    code: str
    message: str


class InputError(Exception):
    """Raised where one request is read, be it a body or a row of a file. Whoever reads many of them
    keeps its ``problem`` and reads on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(code, message)


def as_unicode(text: str, where: str) -> str:
    """``text``. Raises InputError for half a surrogate pair, which JSON may spell: no
    tokenizer can take it, nor can many readers of JSON."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            "invalid_unicode", f"{where} has a lone surrogate at character {error.start}"
        ) from error
    return text


def wrong_kind(name: str, wanted: str, value: Any) -> InputError:
    """The error of a value of another type than ``wanted``. A float is shown as it is where a
    whole number or a switch is wanted."""
    found = str(value)[:40] if isinstance(value, float) else kind(value)
    return InputError("wrong_type", f"{name} must be {wanted}, not {found}")


def as_switch(value: Any, name: str) -> bool:
    """``value``. Raises InputError where it is no boolean."""
    if not isinstance(value, bool):
        raise wrong_kind(name, "true or false", value)
    return value


def switch(body: Given, name: str) -> bool:
    """Whether a body has ``name`` on. Raises InputError for what is no boolean."""
    value = body.get(name)
    return value is not None and as_switch(value, name)


def check_bounds(value: Any, name: str, bounds: Bounds = BODY) -> None:
    """Raises InputError where ``value`` is larger or deeper than ``bounds``."""
    wrong = excess(value, bounds)
    if wrong is not None:
        raise InputError("invalid_value", f"{name} {wrong}")


def require_object(value: Any, name: str, wanted: str = "an object") -> None:
    """Raises InputError where ``value`` is none."""
    if not isinstance(value, Mapping):
        raise InputError("wrong_type", f"{name} must be {wanted}, not {kind(value)}")


def require_list(value: Any, name: str, wanted: str) -> None:
    """Raises InputError where ``value`` is none."""
    if not isinstance(value, list):
        raise InputError("wrong_type", f"{name} must be {wanted}, not {kind(value)}")


def check_count(count: int, name: str, what: str, most: int) -> None:
    """Raises InputError where ``name`` has more than ``most`` of ``what``."""
    if count > most:
        raise InputError("invalid_value", f"{name} has {count:,} {what}, above {most:,}")


def kind(value: Any) -> str:
    """JSON's name for the type of ``value``."""
    return "nothing" if value is MISSING else _KINDS.get(type(value), type(value).__name__)


def shown(value: Any) -> str:
    """A value of a request in a message about it: short ones as they are."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value[:60]) if isinstance(value, str) else kind(value)


# The fields of a body.

MOST_TOLD = 32  # of one request
_MOST_CHARACTERS = 120  # of one name


@dataclass(slots=True)
class Ignored:
    """The names of what is left out of a request, as it is read."""

    strict: bool  # nothing is: its author has the file before him, and can mend it
    names: list[str] = field(default_factory=list)

    def note(self, name: str, refusal: str) -> None:
        """``name`` is left out. Raises InputError with ``refusal`` where nothing may be."""
        if self.strict:
            raise InputError("unsupported_parameter", refusal)
        if len(self.names) < MOST_TOLD:
            told = "".join(one if " " < one <= "~" and one != "," else "?" for one in name)
            self.names.append(told[:_MOST_CHARACTERS])


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a dialect. ``refused`` has, for each name, the values that ask for nothing."""

    read: frozenset[str]
    hints: frozenset[str]
    refused: Mapping[str, tuple[Any, ...]]
    why: Mapping[str, str]  # of some that are refused

    def check(self, body: Any, *, strict: bool = False) -> Ignored:
        """Note what of ``body`` is not known. Raises InputError for what would make the answer
        wrong, is no object or too much."""
        require_object(body, "body")
        check_bounds(body, "body")
        ignored = Ignored(strict)
        for name, value in body.items():
            if value is None or name in self.read or name in self.hints:
                continue
            idle = self.refused.get(name)
            if idle is not None and value in idle:
                continue
            said = f"{name}: {shown(value)}" if idle else name[:60]
            why = self.why.get(name)
            said = f"{said} is not supported" + (f": {why}" if why else "")
            if idle is not None:
                raise InputError("unsupported_parameter", said)
            ignored.note(name, said)
        return ignored


# What one of the dialects, or another server, reads: an answer without it would be another one.
_MEANT = frozenset(
    "messages prompt input system instructions text"
    " max_tokens max_completion_tokens max_output_tokens"
    " stop stop_sequences stop_token_ids bad_words allowed_token_ids use_beam_search"
    " n best_of logprobs top_logprobs prompt_logprobs logit_bias ignore_eos min_tokens"
    " tools tool_choice parallel_tool_calls functions function_call"
    " response_format structured_outputs output_config output_format format json_schema grammar"
    " guided_json guided_regex guided_choice guided_grammar guided_decoding"
    " chat_template documents images audio modalities echo suffix stream background"
    " priority reproducible".split()
)
# Values by which a body asks for nothing.
_IDLE: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "echo": (False,),
    "suffix": ("",),
    "background": (False,),
}


def fields_of(
    read: frozenset[str], hints: frozenset[str], why: Mapping[str, str] | None = None
) -> Fields:
    """The table of a dialect; ``why`` says it of what is refused beside what any of them reads."""
    why = why or {}
    others = {name: _IDLE.get(name, ()) for name in _MEANT.union(why) - read}
    return Fields(read, hints, others, why)
