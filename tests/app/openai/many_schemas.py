"""JSON schemas and tools made at random, asked of a model, and its answers held against them.

    python -m tests.app.openai.many_schemas FILE... [--schemas 200] [--tools 100] [--seed 0]

Prints for each file how many answers finished, how many of these follow their schema, and the
schemas that were refused.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.openai.answer import answer_of
from app.openai.prepare import prepare
from app.openai.request import body_task
from app.openai.validation import InputError
from app.prompts import PromptTooLongError
from runtimes.engine.engine import Engine
from runtimes.request import FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings

QUESTION = [
    {"role": "user", "content": "Make a JSON object about Ana, who is 31 and lives in Rome."}
]
_NAMES = ["name", "age", "größe", "名前", "a b", "x-y", 'q"uote', "$cost", "émoji😀", "tags", "id"]
_PATTERNS = [
    "[A-F]{2,4}",
    "^[a-z]{1,6}$",
    "^\\d{4}-\\d{2}$",
    "^(ja|nein|vielleicht)$",
    "^[äöü]+x?$",
]
_TEXTS = ["red", "größer", "日本", 'say "hi"', "a\\b", "tab\there", "", "😀", "null"]
_MOST_TOKENS = 600


class SchemaMaker:
    """Makes schemas, each another one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def schema(self, depth: int = 3) -> dict[str, Any]:
        """An object, sometimes with definitions that it refers to, also to itself."""
        made = self._object(depth)
        if self._random.random() < 0.3:
            name = self._random.choice(["node", "größe", "a"])
            node = self._object(1)
            ref = {"$ref": f"#/$defs/{name}"}
            node["properties"]["next"] = {"anyOf": [ref, {"type": "null"}]}
            if self._random.random() < 0.5:
                node["properties"]["children"] = {"type": "array", "items": ref, "maxItems": 1}
            made["$defs"] = {name: node}
            made["properties"]["tree"] = ref
            made["required"] = [*made.get("required", []), "tree"]
        return made

    def tool(self, name: str) -> dict[str, Any]:
        """A function that takes such an object."""
        function = {"name": name, "description": "A function.", "parameters": self.schema(2)}
        return {"type": "function", "function": function}

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(_NAMES, self._random.randint(1, 4))
        made: dict[str, Any] = {
            "type": "object",
            "properties": {name: self._value(depth - 1) for name in names},
            "required": [name for name in names if self._random.random() < 0.7],
        }
        if self._random.random() < 0.85:
            made["additionalProperties"] = False
        return made

    def _value(self, depth: int) -> dict[str, Any]:
        kinds = [self._string, self._integer, self._number, self._enum, self._plain]
        deeper = [self._object, self._array, self._any_of] if depth > 0 else []
        kind: Any = self._random.choice([*kinds, *deeper])
        made: dict[str, Any] = kind(depth)
        return made

    def _string(self, _: int) -> dict[str, Any]:
        pattern = {"type": "string", "pattern": self._random.choice(_PATTERNS)}
        least = self._random.randint(0, 3)
        sized = {"type": "string", "minLength": least, "maxLength": least + 6}
        formats = ["date", "time", "uuid", "ipv4", "email"]
        formed = {"type": "string", "format": self._random.choice(formats)}
        return self._random.choice([pattern, sized, sized, formed])

    def _integer(self, _: int) -> dict[str, Any]:
        least = self._random.randint(-1000, 1000)
        most = least + self._random.randint(0, 500)
        odd = {"type": "integer", "exclusiveMinimum": least, "exclusiveMaximum": most + 2}
        even = {"type": "integer", "minimum": -60, "maximum": 60, "multipleOf": 3}
        return self._random.choice(
            [{"type": "integer", "minimum": least, "maximum": most}, odd, even]
        )

    def _number(self, _: int) -> dict[str, Any]:
        least = round(self._random.uniform(-5, 5), 2)
        return {"type": "number", "minimum": least, "maximum": least + self._random.randint(0, 9)}

    def _enum(self, _: int) -> dict[str, Any]:
        if self._random.random() < 0.3:
            return {"const": self._random.choice([None, 3, True, "größer", [1, {"a": None}]])}
        return {"enum": [*self._random.sample(_TEXTS, 3), 5, None, {"a": [True]}]}

    def _plain(self, _: int) -> dict[str, Any]:
        kinds = ["boolean", "null"]
        return self._random.choice([{"type": "boolean"}, {"type": kinds}, {"type": "null"}])

    def _array(self, depth: int) -> dict[str, Any]:
        items = self._value(depth - 1)
        if self._random.random() < 0.3:
            pair = [items, self._value(0)]
            return {"type": "array", "prefixItems": pair, "items": False, "minItems": 2}
        least = self._random.randint(0, 2)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}

    def _any_of(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self._value(depth - 1) for _ in range(self._random.randint(2, 3))]}


@dataclass(slots=True)
class Found:
    """What came of them."""

    asked: int = 0
    finished: int = 0
    follow: int = 0
    calls: int = 0
    unfit: int = 0  # too long for the model's context
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def answers(engine: Engine, bodies: Sequence[dict[str, Any]]) -> Found:
    """Ask each body, all of them together, and hold the answers against what they ask for."""
    validator = importlib.import_module("jsonschema").Draft202012Validator
    found, running = Found(asked=len(bodies)), []
    for number, body in enumerate(bodies):
        params = SamplingParams(temperature=1.0, max_tokens=_MOST_TOKENS, seed=number)
        try:
            task = body_task({"messages": QUESTION, **body}, "chat", params)
        except InputError as error:
            found.refused.append(str(error))
            continue
        try:
            said = prepare(task, engine, task.sampling or params)
        except PromptTooLongError:
            found.unfit += 1
            continue
        running.append((body, said, engine.submit(Request(said.ids, said.params))))
    for body, said, stream in running:
        completion = stream.result()
        if completion.finish_reason is FinishReason.ERROR:
            found.wrong.append(f"{completion.error}: {json.dumps(body)}")
        if completion.finish_reason is not FinishReason.STOP:
            continue
        found.finished += 1
        answer = answer_of([completion], said.form.parser)
        try:
            if "tools" in body:
                for function in (call["function"] for call in answer.tool_calls or ()):
                    [tool] = [t for t in body["tools"] if t["function"]["name"] == function["name"]]
                    schema = tool["function"]["parameters"]
                    validator(schema).validate(json.loads(function["arguments"]))
                    found.calls += 1
                assert answer.tool_calls
                assert not answer.response
            else:
                schema = body["response_format"]["json_schema"]["schema"]
                validator(schema).validate(json.loads(answer.response or ""))
            found.follow += 1
        except Exception as error:
            found.wrong.append(f"{error!r:.300}: {completion.text} of {json.dumps(body)}")
    return found


def schema_bodies(count: int, seed: int) -> list[dict[str, Any]]:
    """Each asks for an answer in JSON."""
    maker = SchemaMaker(seed)
    formats = [{"name": "x", "strict": True, "schema": maker.schema()} for _ in range(count)]
    return [{"response_format": {"type": "json_schema", "json_schema": one}} for one in formats]


def tool_bodies(count: int, seed: int) -> list[dict[str, Any]]:
    """Each asks for calls; ``count`` tools in all."""
    maker, bodies = SchemaMaker(seed + 1), list[dict[str, Any]]()
    tools = [maker.tool(f"tool_{number}") for number in range(count)]
    while tools:
        size = 2 if len(bodies) % 4 == 3 else 1
        some, tools = tools[:size], tools[size:]
        choice: Any = "required" if len(bodies) % 2 else some[-1]
        bodies.append({"tools": some, "tool_choice": choice, "parallel_tool_calls": size > 1})
    return bodies


def main(arguments: Sequence[str]) -> int:
    """Returns 1 where an answer does not follow, or a schema is refused."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--tools", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    failed = False
    for path in options.files:
        with Engine.load(path, RunnerSettings(slots=8, context=4096)) as engine:
            for what, bodies in (
                ("schemas", schema_bodies(options.schemas, options.seed)),
                ("tools", tool_bodies(options.tools, options.seed)),
            ):
                found = answers(engine, bodies)
                sys.stdout.write(
                    f"{path.name}: {what}: {found.asked} asked, {len(found.refused)} refused,"
                    f" {found.unfit} too long, {found.finished} finished,"
                    f" {found.follow} follow, {found.calls} calls\n"
                )
                for line in [*found.refused, *found.wrong]:
                    sys.stdout.write(f"  {line}\n")
                failed = failed or bool(found.refused or found.wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
