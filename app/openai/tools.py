"""The tools of a request: the functions that a model may call, and the calls of earlier answers."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.openai.constraints import followed, schema_constraint
from app.openai.validation import (
    MOST_TOOLS,
    TOOL,
    Given,
    Ignored,
    InputError,
    JsonObject,
    as_unicode,
    check_bounds,
    check_count,
    require_list,
    require_object,
    shown,
    switch,
)

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_BY_NUMBER = re.compile(r"(?<=^tools)\.(\d+)")
# What OpenAI means by a function without parameters.
_NOTHING: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}
# An object may get its properties from elsewhere by these.
_COMPOSED = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}


@dataclass(frozen=True, slots=True)
class Tools:
    """Functions that may be called."""

    functions: tuple[Given, ...]  # each with a name, and parameters as a schema
    required: bool = False  # the answer has to be a call
    parallel: bool = True  # it may have several

    def schema(self, function: Given) -> Given:
        """Schema of a function's arguments."""
        given: Given = function.get("parameters") or _NOTHING
        schema, _ = followed({"type": "object", **given}, "parameters")
        closed: Given = _closed(schema)
        return closed

    def json(self) -> list[JsonObject]:
        """As a template is given them."""
        return [{"type": "function", "function": dict(one)} for one in self.functions]


def _closed(schema: Any) -> Any:
    """Without properties that the schema does not name, where it does not say whether there may be:
    a model would make them up."""
    if not isinstance(schema, Mapping) or schema.keys() & _COMPOSED:
        return schema
    closed = dict(schema)
    if isinstance(schema.get("properties"), Mapping):
        inner = schema["properties"]
        closed["properties"] = {name: _closed(one) for name, one in inner.items()}
        closed.setdefault("additionalProperties", False)
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    return closed


@dataclass(frozen=True, slots=True)
class ToolFields:
    """The place where a dialect's tool has its function."""

    types: tuple[str | None, ...] = ("function",)  # of tools that are functions
    parameters: str = "parameters"
    inside: bool = False  # in the tool's ``function``


def tools_of(body: Given, form: ToolFields, ignored: Ignored) -> Tools | None:
    """Read the tools of a body, which have this ``form``; None where no tool may be called. Raises
    InputError."""
    given, choice = body.get("tools"), body.get("tool_choice")
    parallel = body.get("parallel_tool_calls") is None or switch(body, "parallel_tool_calls")
    given = [] if given is None else given
    require_list(given, "tools", "a list of tools")
    check_count(len(given), "tools", "tools", MOST_TOOLS)
    functions: list[Given] = []
    left: list[Any] = []
    for number, tool in enumerate(given):
        if (function := _function(tool, form, f"tools.{number}", ignored)) is not None:
            functions.append(function)
        else:
            left += [tool.get("type"), tool.get("name")]
    _check_left_out(left, choice)
    if not functions:
        if choice not in (None, "none", "auto"):
            lack = "no tool is left" if given else "there are no tools"
            raise InputError("invalid_value", f"tool_choice asks for a call, and {lack}")
        return None
    return _chosen(Tools(tuple(functions), parallel=parallel), choice)


def _check_left_out(left: Sequence[Any], choice: Any) -> None:
    """Raises InputError where ``tool_choice`` asks for the type or the name of one of these, which
    are left out."""
    if not isinstance(choice, Mapping):
        return
    function = choice.get("function")
    inner = function if isinstance(function, Mapping) else {}
    for name in (choice.get("type"), choice.get("name"), inner.get("name")):
        if isinstance(name, str) and name in left and name not in ("function", "tool"):
            said = f"tool_choice names {name[:64]!r}, a tool that a provider runs: it is left out"
            raise InputError("invalid_value", said)


def _chosen(tools: Tools, choice: Any) -> Tools | None:
    """The tools that ``tool_choice`` leaves. Raises InputError."""
    names = [one["name"] for one in tools.functions]
    for number, name in enumerate(names):
        if name in names[:number]:
            said = f"tools.{number}: another tool is called {name!r}"
            raise InputError("invalid_value", said)
    if choice is None or choice == "auto":
        return tools
    if choice == "none":
        return None
    if choice == "required":
        return replace(tools, required=True)
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools")
        return _allowed(tools, choice if inner is None else inner)
    return _only(tools, [_named(choice, "tool_choice")], required=True)


def _allowed(tools: Tools, choice: Any) -> Tools | None:
    listed = choice.get("tools") if isinstance(choice, Mapping) else None
    if not isinstance(listed, list) or choice.get("mode") not in ("auto", "required"):
        raise InputError(
            "invalid_value", "tool_choice.allowed_tools needs tools, and a mode: auto or required"
        )
    names = [_named(one, f"tool_choice.allowed_tools.tools.{i}") for i, one in enumerate(listed)]
    return _only(tools, names, required=choice["mode"] == "required") if names else None


def _named(choice: Any, where: str) -> str:
    inner = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        wanted = "none, auto, required or the name of a function as an object"
        raise InputError("invalid_value", f"{where} must be {wanted}, not {shown(choice)}")
    return name


def _only(tools: Tools, names: Sequence[str], *, required: bool) -> Tools:
    known = {one["name"]: one for one in tools.functions}
    for name in names:
        if name not in known:
            said = f"tool_choice names {name[:64]!r}, and no tool is called so"
            raise InputError("invalid_value", said)
    left = tuple(one for name, one in known.items() if name in names)
    return replace(tools, functions=left, required=required)


def _function(tool: Any, form: ToolFields, where: str, ignored: Ignored) -> Given | None:
    """A function with a name, and a schema that can be followed, all of it if it is strict; None:
    the tool is left out. Raises InputError."""
    require_object(tool, where, "a tool")
    found = tool.get("type")
    if found not in form.types:  # only its provider runs it
        said = f"{where}.type must be {form.types[0]}, not {shown(found)}"
        if not isinstance(found, str) or not found:
            raise InputError("unsupported_parameter", said)
        number = where.rpartition(".")[2]
        ignored.note(f"tools[{number}].type={found}", said)
        return None
    if form.inside:
        tool, where = tool.get("function"), f"{where}.function"
        require_object(tool, where)
        function = tool
    else:
        names = {"name": "name", "description": "description", form.parameters: "parameters"}
        function = {own: tool[name] for name, own in names.items() if name in tool}
    check_bounds(function, where, TOOL)
    name = function.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        said = f"{where}.name must be 1 to 64 letters, digits, _, . or -, not {shown(name)}"
        raise InputError("invalid_value", said)
    described = function.get("description")
    if described is not None and not isinstance(described, str):
        raise InputError("wrong_type", f"{where}.description must be a text")
    as_unicode(json.dumps(function, ensure_ascii=False), where)
    given = function.get("parameters")
    where = f"{where}.{form.parameters}"
    if given is not None:
        require_object(given, where, "a JSON schema")
        if given.get("type", "object") != "object":
            said = f"{where}.type must be object, not {shown(given['type'])}"
            raise InputError("invalid_value", said)
        schema = {"type": "object", **given}
        if tool.get("strict") is True or ignored.strict:
            schema_constraint(schema, where)
        else:
            for place in followed(schema, where)[1]:
                ignored.note(_BY_NUMBER.sub(r"[\1]", place), "")
    return {key: value for key, value in function.items() if value is not None}
