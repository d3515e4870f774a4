"""Fields of the body of a request: those that are read, hints that change nothing, and those
without which the answer would be another one. Each dialect has one table.

Clients send more than any server knows. What they send for the provider's sake cannot make an
answer wrong: it is left out, and told once. What can is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.openai.validation import InputError, check_bounds, require_object, shown

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
        """What of ``body`` is not known. Raises InputError for what would make the answer wrong, is
        no object or too much."""
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
