"""Bodies for every path of the server: good ones (corpus/bodies.json), what its openapi document
describes, and both with something wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from random import Random
from typing import Any

from tests.fuzz import forms
from tests.fuzz.mutate import CORPUS, mutated, nested, strange

# Good ones by path; what generates is short.
GOOD: dict[str, list[dict[str, Any]]] = json.loads((CORPUS / "bodies.json").read_bytes())
EVERY = [body for bodies in GOOD.values() for body in bodies]
MODELS = (
    "pebble",
    "tools",
    "pebble:poet",
    "none",
    "",
    "pebble:",
    "\ud800",
    "x" * 300,
    "a\nb\x1b[2J",
)


def body(path: str, random: Random, schema: Mapping[str, Any] | None = None) -> Any:
    """A body for ``path``, whose ``schema`` its openapi document has."""
    good = GOOD.get(path, EVERY)
    made: Any = copy.deepcopy(random.choice(good))
    if schema is not None and random.random() < 0.15:
        made = described(schema, random)
    kind = random.random()
    if kind > 0.4:
        made = mutated(made, random, EVERY)
    elif kind < 0.03:
        return strange(random)
    if isinstance(made, dict):
        if random.random() < 0.4:
            made["model"] = random.choice(MODELS[:2] if random.random() < 0.8 else MODELS)
        if random.random() < 0.2:
            _form(made, path, random)
            return made
    return mutated(made, random, EVERY) if 0.2 < kind < 0.4 else made


def _form(body: dict[str, Any], path: str, random: Random) -> None:
    """Ask for something in a form, by each of the ways there are."""
    schema = forms.schema(random)
    if path == "/v1/messages":
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        body["tools"] = [{"name": "x", "input_schema": schema}]
    elif path == "/v1/responses":
        body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    elif random.random() < 0.3:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    elif random.random() < 0.5:
        body["structured_outputs"] = random.choice(
            (
                {"json": schema},
                {"regex": forms.expression(random)},
                {"grammar": forms.grammar(random)},
                {"choice": forms.choices(random)},
            )
        )
    else:
        odd = nested(random) if random.random() < 0.5 else strange(random)
        extra = {random.choice(("x", "strict", "description")): odd}
        function = {"name": "x", "parameters": schema, **random.choice(({}, extra))}
        body["tools"] = [{"type": "function", "function": function}]


def described(schema: Mapping[str, Any], random: Random) -> Any:
    """A value that a schema of the openapi document describes."""
    if "anyOf" in schema:
        return described(random.choice(schema["anyOf"]), random)
    if "enum" in schema:
        return random.choice(schema["enum"])
    kind = schema.get("type")
    match random.choice(kind) if isinstance(kind, list) else kind:
        case "object":
            properties: Mapping[str, Any] = schema.get("properties", {})
            chosen = set(schema.get("required", ())) | {
                name for name in properties if random.random() < 0.15
            }
            known = sorted(chosen & {*properties})  # in the same order in every process
            return {name: described(properties[name], random) for name in known}
        case "array":
            return [described(schema.get("items", {}), random) for _ in range(random.randrange(4))]
        case "integer":
            return random.choice((0, 1, 2, 5, -1))
        case "number":
            return random.choice((0, 0.5, 1.0, -1.5))
        case "boolean":
            return random.random() < 0.5
        case "string":
            return random.choice(("x", "Hello", "user", ""))
        case _:
            return strange(random)


def rows(random: Random, most: int = 6) -> list[Any]:
    """Requests of a batch, as its lines have them."""
    path = random.choice(("/v1/chat/completions", "/v1/completions", "/v1/embeddings"))
    made: list[Any] = []
    for number in range(random.randrange(1, most + 1)):
        inner = copy.deepcopy(random.choice(GOOD[path]))
        inner["model"] = "pebble" if random.random() < 0.9 else random.choice(MODELS)
        inner.pop("stream", None)
        inner.pop("stream_options", None)
        if random.random() < 0.5:
            inner = mutated(inner, random, EVERY) if random.random() < 0.5 else body(path, random)
        row = {"custom_id": f"r{number}", "method": "POST", "url": path, "body": inner}
        made.append(mutated(row, random) if random.random() < 0.2 else row)
    return made
