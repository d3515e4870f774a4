"""Checks of a request against the size of an engine, and texts of grammars.

From a JSON schema, a regular expression, choices or a grammar to what llguidance parses. Regular
expressions are those of Rust's ``regex`` (no look-around); grammars are in llguidance's dialect of
Lark. `runtimes.grammars` compiles them.
"""

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from runtimes.errors import RequestError
from runtimes.request import Constraint, Request
from runtimes.settings import MOST_ADAPTERS

# Between two parts of a JSON text: a space, or a new line with its indentation. JSON allows any
# number of them, and a small model may never stop.
JSON_WHITESPACE = r" |\n {0,16}"
_JSON_OPTIONS: Any = {"whitespace_pattern": JSON_WHITESPACE}

_ADAPTER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def check_adapter(name: str, path: Path, loaded: Collection[str]) -> None:
    """Raise RequestError where no adapter at ``path`` can be called ``name`` beside others."""
    if not _ADAPTER_NAME.fullmatch(name):
        raise RequestError(
            f"an adapter cannot be called {name!r}: up to 64 letters, digits, and . - _"
        )
    if name in loaded:
        raise RequestError(f"there is an adapter {name!r} already: unload it first")
    if len(loaded) >= MOST_ADAPTERS:
        raise RequestError(f"{MOST_ADAPTERS} adapters are loaded, and that is the most")
    if not path.is_file():
        raise RequestError(f"there is no file {path} (quantize --adapter makes one of a folder)")


def check_room(request: Request, context: int) -> None:
    """Raises RequestError for a prompt that leaves no room for a token in ``context``, or for a
    text to embed that does not fit it."""
    if request.embed:
        if len(request.prompt) > context:
            raise RequestError(
                f"the text has {len(request.prompt):,} tokens; the context holds {context:,}"
            )
    elif len(request.prompt) >= context:
        raise RequestError(
            f"the prompt has {len(request.prompt):,} tokens; the context holds {context:,} and one "
            "must be left for the answer"
        )


def markers_of(constraint: Constraint) -> tuple[str, ...]:
    """Texts of its grammar for which a control token may stand."""
    return tuple(json.loads(constraint.source)["markers"]) if constraint.kind == "tools" else ()


def refused(constraint: Constraint, why: str) -> RequestError:
    """The error of a constraint that cannot be used."""
    return RequestError(f"the {_NAMES[constraint.kind]} cannot be used: {_short(why)}")


# Begins the error of an answer whose constraint turned out to be too much for the parser.
UNFOLLOWED = "the constraint cannot be followed"
_NAMES = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "choices": "list of choices",
    "grammar": "grammar",
    "tools": "grammar of the tools",
}


def grammar_text(constraint: Constraint) -> str:
    """The grammar as llguidance takes it, not yet compiled. Raises ValueError."""
    from llguidance import LLMatcher

    source = constraint.source
    if constraint.kind == "json_schema":
        if wrong := _wrong_schema(source):
            raise ValueError(wrong)
        schema = quoted_refs(json.loads(source))
        return str(LLMatcher.grammar_from_json_schema(schema, defaults=_JSON_OPTIONS))
    if constraint.kind == "regex":
        return str(LLMatcher.grammar_from_regex(source))
    if constraint.kind == "tools":
        source = json.loads(source)["grammar"]
    elif constraint.kind == "choices":
        choices = json.loads(source)
        if not (isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices)):
            raise ValueError("it must be a JSON list of texts with at least one")
        if "" in choices:
            raise ValueError("a choice must not be empty")
        texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        # One terminal: of alternatives of a rule each would be looked at in every step.
        source = f"start: CHOICE\nCHOICE: {texts}"
    return str(LLMatcher.grammar_from_lark(source))


def quoted_refs(schema: Any) -> Any:
    """``schema``, its references as URIs have to be written: Pydantic and others leave letters like
    ö as they are, and llguidance wants them quoted."""
    if isinstance(schema, list):
        return [quoted_refs(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    quoted = {
        key: value if key in ("enum", "const") else quoted_refs(value)
        for key, value in schema.items()
    }
    if isinstance(reference := quoted.get("$ref"), str):
        quoted["$ref"] = quote(reference, safe=_OF_URIS)
    return quoted


def _wrong_schema(source: str) -> str | None:
    """Describe the first fault and its place; None if llguidance may judge the source."""
    try:
        schema = json.loads(source)
        wrong = [(place, n) for place, n in _type_names(schema, "#") if n not in _TYPES]
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return f"it is not JSON: {error}" if source.strip() else "it is empty"
    if not isinstance(schema, dict):
        kinds = {list: "a list", str: "a text", int: "a number", float: "a number"}
        return f"it must be a JSON object, not {kinds.get(type(schema), json.dumps(schema))}"
    if wrong:
        place, name = wrong[0]
        return f"at {place}: {json.dumps(name)} is not a type; types are {', '.join(_TYPES)}"
    return None


_OF_URIS = "#/?:@!$&'()*+,;=-._~%"  # RFC 3986: what may stand in one as it is
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions")  # schemas by name
_OF_SCHEMAS = ("items", "prefixItems", "additionalProperties", "allOf", "anyOf", "oneOf")


def _type_names(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    """Each type that a schema names, with its place as a JSON pointer."""
    if isinstance(schema, list):
        for number, one in enumerate(schema):
            yield from _type_names(one, f"{place}/{number}")
    if not isinstance(schema, dict):
        return
    names = schema.get("type")
    yield from ((place, n) for n in (names if isinstance(names, list) else [names]) if n)
    for key in _OF_SCHEMAS:
        yield from _type_names(schema.get(key), f"{place}/{key}")
    for key in _OF_NAMES:
        inner = schema.get(key)
        for name, one in inner.items() if isinstance(inner, dict) else ():
            yield from _type_names(one, f"{place}/{key}/{name}")


def _short(why: str) -> str:
    """Shorten llguidance's message to the fault and its place; llguidance repeats the whole
    expression."""
    found = _REGEX_ERROR.search(why)
    if found is None:
        return one_line(why)[:_SHOWN]
    pattern, pointer, reason = found.groups()
    piece = pattern[len(pointer) :][:_PIECE]
    return f"{reason}, at " + (f"`{piece}`" if piece else "its end")


_REGEX_ERROR = re.compile(r"regex parse error:\n(.*)\n( *)\^+\nerror: (.*)")
_SHOWN, _PIECE = 200, 20


def one_line(text: str) -> str:
    """A message of llguidance without its drawings."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip(" ^|"))
