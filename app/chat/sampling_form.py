"""Sampling parameters as text fields: what each means, what it may be, and what is wrong with a
text; and the mapping that is kept with a chat, which has only what differs from the defaults."""

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from app.config.settings import Sampling
from runtimes.errors import RequestError
from runtimes.request import Constraint, SamplingParams

log = logging.getLogger(__name__)

FORM = "constraint"  # what answers must be, kept beside the parameters
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "|": "|"}


@dataclass(frozen=True, slots=True)
class SamplingField:
    """A parameter. ``range`` says what may be typed."""

    name: str
    kind: str
    label: str
    range: str
    help: str


_KINDS = {
    "int": "whole",
    "float": "number",
    "int | None": "optional",
    "ThinkingLevel | None": "word",
    "tuple[str, ...]": "texts",
}
FIELDS = tuple(
    SamplingField(item.name, _KINDS[str(item.type)], **item.metadata["setting"])
    for item in fields(Sampling)
)
_BLANK: Mapping[str, Any] = {"optional": None, "word": None, "texts": ()}
_BY_NAME = {one.name: one for one in FIELDS}


def field(name: str) -> SamplingField:
    """The field of this name, in any case, with - for _. Raises RequestError naming a near one."""
    wanted = name.lower().replace("-", "_")
    if wanted in _BY_NAME:
        return _BY_NAME[wanted]
    starts = [known for known in _BY_NAME if wanted and known.startswith(wanted)]
    near = starts or difflib.get_close_matches(wanted, _BY_NAME, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(_BY_NAME)}"
    raise RequestError(f"there is no sampling parameter {name}{hint}")


def read_value(name: str, text: str) -> Any:
    """The value that ``text`` says for a field. Raises RequestError that says what may be typed."""
    one = field(name)
    try:
        value = _value(one, text.strip() if one.kind != "texts" else text)
        SamplingParams(**{one.name: value})
    except (ValueError, RequestError):
        short = text if len(text) <= 30 else f"{text[:29]}…"
        raise RequestError(f"{one.name} must be {one.range}, not {short!r}") from None
    return value


def read(
    texts: Mapping[str, str], defaults: Sampling
) -> tuple[SamplingParams | None, dict[str, str]]:
    """The form as it is typed now, None while a field is wrong; errors are keyed by field. A field
    that is missing or blank has its default; what may be nothing is then nothing."""
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for one in FIELDS:
        text = texts.get(one.name, "")
        if not text.strip():
            values[one.name] = _BLANK.get(one.kind, getattr(defaults, one.name))
            continue
        try:
            values[one.name] = read_value(one.name, text)
        except RequestError as error:
            errors[one.name] = str(error)
    return None if errors else defaults.params(**values), errors


def texts_of(params: SamplingParams) -> dict[str, str]:
    """Each field's text, which ``read`` makes the same parameters of."""
    return {one.name: _text(one, getattr(params, one.name)) for one in FIELDS}


def to_mapping(params: SamplingParams, defaults: Sampling) -> dict[str, Any]:
    """Return the fields that differ from the defaults, as stored with a chat in JSON."""
    found: dict[str, Any] = {}
    for one in FIELDS:
        value = getattr(params, one.name)
        if value != getattr(defaults, one.name):
            found[one.name] = list(value) if isinstance(value, tuple) else value
    if params.constraint is not None:
        found[FORM] = asdict(params.constraint)
    return found


def parameters(kept: Mapping[str, Any]) -> dict[str, Any]:
    """A chat's mapping without the form of its answers, which no setting or preset has."""
    return {name: value for name, value in kept.items() if name != FORM}


def form_words(kept: Mapping[str, Any]) -> str:
    """Name the form of answers that a chat's mapping has; "" for none."""
    kind = kept[FORM].get("kind") if isinstance(kept.get(FORM), dict) else None
    return {None: "", "choices": "one of your choices"}.get(kind, "JSON of your schema")


def from_mapping(kept: Mapping[str, Any], defaults: Sampling) -> SamplingParams:
    """The parameters of a chat. What another version kept and this one does not know, or a value
    that is out of its range, is left out."""
    good: dict[str, Any] = {}
    for name, value in kept.items():
        try:
            if name == FORM:
                kept_form: Any = {key: str(text) for key, text in value.items()}
                good[name] = Constraint(**kept_form)
                continue
            if name not in _BY_NAME:
                raise RequestError("there is no such parameter")
            good[name] = read_value(name, _text(_BY_NAME[name], value))
        except (RequestError, AttributeError, TypeError, ValueError) as error:
            log.warning("the chat's %s is left out: %s", name, error)
    return defaults.params(**good)


def summary(params: SamplingParams, defaults: Sampling) -> str:
    """Describe the fields that differ from the defaults, such as "temperature 0.2 · seed 7"; "" for
    none.
    """
    found = to_mapping(params, defaults)
    said = [f"{name} {_text(_BY_NAME[name], value)}" for name, value in parameters(found).items()]
    return " · ".join([*said, *filter(None, [form_words(found)])])


def _value(one: SamplingField, text: str) -> Any:
    match one.kind:
        case "texts":
            return tuple(part for part in parts_of(text) if part)
        case "optional":
            return None if text.lower() in ("", "none", "random") else int(text)
        case "word":
            return None if text.lower() in ("", "none") else text.lower()
        case "whole":
            return int(text)
    return float(text.replace(",", ".") if text.count(",") == 1 else text)


def _text(one: SamplingField, value: Any) -> str:
    if value is None:
        return ""
    if one.kind == "texts":
        return "|".join(_escaped(str(part)) for part in value)
    return f"{value:g}" if one.kind == "number" and float(f"{value:g}") == value else str(value)


def parts_of(text: str) -> list[str]:
    """Split a text at | and resolve backslashes."""
    parts = [""]
    for found in re.finditer(r"\\(?P<escaped>.)|(?P<end>\|)|.", text, re.DOTALL):
        if found["end"]:
            parts.append("")
        elif found["escaped"]:
            parts[-1] += _ESCAPES.get(found["escaped"], found[0])
        else:
            parts[-1] += found[0]
    return parts


def _escaped(text: str) -> str:
    names = {value: name for name, value in _ESCAPES.items()}
    return "".join(f"\\{names[letter]}" if letter in names else letter for letter in text)
