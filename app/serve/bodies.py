"""A body as JSON: what it may become in memory, read beside the event loop where that takes long.

A text of 16 MiB can be 400 MiB of objects, and the parser holds the interpreter's lock: values and
depth are counted in the bytes before any of them is parsed.

Bodies as /openapi.json describes them are here too. They are read by `app.openai`, not by Pydantic:
what is wrong with one is said in OpenAI's form of an error.
"""

import asyncio
import gc
import math
import re
import sys
import threading
import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Self, TypeVar

from anyio import to_thread
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from app.openai.request import Generating
from app.openai.validation import Given, InputError, JsonObject, require_object
from app.serve.errors import HttpError, shutting_down
from app.serve.generate import while_connected
from app.serve.options import MOST_BODIES_BYTES, MOST_DEPTH, MOST_NAMES, MOST_VALUES
from runtimes.request import SamplingParams

_Value = TypeVar("_Value")

SMALL_BYTES = 2**16  # a body of so many is parsed at once, and is never too much beside others
_RETRY_S = 5
_VALUE_BYTES = 96  # that a value takes in memory beside its text, in the mean of what costs most
_TURN_S = 30.0  # the longest that a large body waits for those before it
_MOST_REST_S = 1.0
_REST = 9  # after a large body, the next one waits so many times as long as that took
_PIECE = 2**20
_PAIR = re.compile(rb"\\u[dD][89abAB]")  # the escape of a wide character begins so


@dataclass(slots=True)
class Held:
    """Bodies of a server that are in memory: ``total`` bytes of them and of what they became."""

    total: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards it
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)  # one large body at a time
    _waits: set[asyncio.Timeout] = field(default_factory=set)  # for a turn, or more of a body
    _ended: bool = False

    @asynccontextmanager
    async def until(self, end: float, late: HttpError) -> AsyncIterator[None]:
        """Wait within the block, till the loop's time ``end`` at most. Raises ``late`` then, or
        HttpError (503) where the server ends."""
        try:
            async with asyncio.timeout_at(0 if self._ended else end) as wait:
                self._waits.add(wait)
                yield
        except TimeoutError:
            raise (shutting_down() if self._ended else late) from None
        finally:
            self._waits.discard(wait)

    async def turn(self) -> None:
        """Wait to be the one that parses. Raises HttpError (503) where that takes long, or the
        server ends."""
        said = "other requests take the time that there is for large bodies"
        late = HttpError(503, "bodies_full", said, retry_s=_RETRY_S)
        async with self.until(asyncio.get_running_loop().time() + _TURN_S, late):
            await self.parsing.acquire()

    def end(self) -> None:
        """Nobody waits any more: the server ends."""
        self._ended = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(0)


@dataclass(slots=True)
class Charge:
    """One request's share of the memory for bodies."""

    held: Held
    amount: int = 0

    def add(self, amount: int) -> None:
        """Raises HttpError (503) where others leave too little for a body that is not small."""
        self.amount += amount
        with self.held.lock:
            self.held.total += amount
            total = self.held.total
        if total > MOST_BODIES_BYTES and self.amount > SMALL_BYTES:
            said = "other requests take the memory that there is for bodies"
            raise HttpError(503, "bodies_full", said, retry_s=_RETRY_S)

    def close(self) -> None:
        """Give all of it back."""
        with self.held.lock:
            self.held.total -= self.amount
        self.amount = 0


async def json_body(request: Request, most: int = MOST_VALUES) -> Any:
    """The body as JSON of at most so many values. Raises HttpError: 400 for what is no JSON, or has
    numbers beyond a float or half a surrogate pair; 413 for too many values; 503 as `Charge.add`.
    """
    data = bytearray()
    async for piece in request.stream():
        data += piece  # pieces of a byte would take forty times as much
    charge: Charge = request.scope["ingot.charge"]
    parse = partial(_parsed, bytes(data), charge, most)
    return parse() if len(data) <= SMALL_BYTES else await _in_turn(request, charge.held, parse)


async def read_task(request: Request, task_of: Callable[[], _Value]) -> Callable[[], _Value]:
    """``task_of``, which reads the request's body: of a large one it has been called, beside the
    event loop and in turn with other large ones. Raises as it."""
    charge: Charge = request.scope["ingot.charge"]
    if charge.amount <= SMALL_BYTES:
        return task_of
    found = await _in_turn(request, charge.held, task_of)
    return lambda: found


async def _in_turn(request: Request, held: Held, work: Callable[[], _Value]) -> _Value:
    """The result of ``work`` on a large body, on a thread. Threads that compute share the
    interpreter's lock with the event loop: there is one at a time, with rests."""
    rest_s = _MOST_REST_S  # where nobody waits for the end of it

    def timed() -> _Value:
        nonlocal rest_s
        begun = time.thread_time()
        try:
            return work()
        finally:
            rest_s = min(_MOST_REST_S, _REST * (time.thread_time() - begun))

    await while_connected(request, held.turn())
    try:
        return await to_thread.run_sync(timed)
    finally:
        asyncio.get_running_loop().call_later(rest_s, held.parsing.release)


def checked_values(data: bytes, most: int) -> int:
    """How many values a JSON text has, or more. Raises HttpError: 400 where they are nested too
    deeply, 413 for more than ``most``."""
    opened, names = data.count(b"[") + data.count(b"{"), data.count(b":")
    values = opened + names + data.count(b",")  # more than there are: some may stand in texts
    if opened > MOST_DEPTH or names > MOST_NAMES or values > most:
        values, names, depth = _shape(data, most)
        if depth > MOST_DEPTH:
            said = f"the body is nested too deeply: more than {MOST_DEPTH} levels"
            raise HttpError(400, "invalid_value", said)
        for count, limit, what in ((values, most, "values"), (names, MOST_NAMES, "names")):
            if count > limit:
                said = f"the body has more than {limit:,} {what}"
                raise HttpError(413, "body_too_large", said)
    return values


def _parsed(data: bytes, charge: Charge, most: int) -> Any:
    values = checked_values(data, most)
    gc.disable()  # it would look through millions of small values again and again
    try:
        text_bytes = sys.getsizeof(data.decode("utf-8-sig"))
        charge.add(values * _VALUE_BYTES + text_bytes - len(data) + _widened(data))
        value = from_json(data.removeprefix(BOM_UTF8), allow_inf_nan=False)
        if not _finite(value):
            raise ValueError("it has too large a number")
    except ValueError as error:
        if "hex escape" in str(error):  # so its parser calls what is left of a pair
            said = f"the body has half a surrogate pair: {error}"
            raise HttpError(400, "invalid_unicode", said) from None
        raise HttpError(400, "invalid_json", f"the body is not JSON: {error}"[:300]) from None
    finally:
        gc.enable()
    return value


def _finite(value: Any) -> bool:
    """Whether no number is beyond a float: the parser makes infinity of such."""
    level = [value]
    while level:
        if math.inf in level or -math.inf in level:
            return False
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [each for one in inner for each in (one.values() if type(one) is dict else one)]
    return True


def _widened(data: bytes) -> int:
    """Bytes that its texts take more, at most, where an escape makes all their characters wide."""
    return len(data) * (3 if _PAIR.search(data) else b"\\u" in data)


def _shape(data: bytes, most: int) -> tuple[int, int, int]:
    """How many values a JSON text has, names included, how many of them are names, and how deeply
    they are nested; no further than one of these is too much. Of what is no JSON, all that the
    parser would read is counted."""
    import numpy as np

    step = np.zeros(256, np.int8)
    step[list(b"[{")], step[list(b"]}")] = 1, -1
    marks = np.zeros(256, bool)
    marks[list(b"[{,:")] = True
    values, names, depth, deepest, quoted, rest = 1, 0, 0, 0, 0, b""
    for begin in range(0, len(data), _PIECE):
        piece = rest + data[begin : begin + _PIECE]
        piece = piece.replace(rb"\\", b"").replace(rb"\"", b"")
        rest = piece[-1:] if piece.endswith(b"\\") else b""  # half of an escape
        found = np.frombuffer(piece, np.uint8)
        if not len(found):
            continue
        quotes = np.cumsum(found == ord('"'), dtype=np.uint8) + np.uint8(quoted)
        outside = (quotes & 1) == 0
        quoted = int(quotes[-1]) & 1
        values += int(np.count_nonzero(marks[found] & outside))
        names += int(np.count_nonzero((found == ord(":")) & outside))
        levels = depth + np.cumsum(step[found] * outside, dtype=np.int32)
        depth, deepest = int(levels[-1]), max(deepest, int(levels.max()))
        if values > most or names > MOST_NAMES or deepest > MOST_DEPTH:
            break
    return values, names, deepest


# What /openapi.json says of bodies.

_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "int | None": "integer"}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "user", "assistant"]},
        "content": {"type": "string"},
    },
}
_PROMPTS: dict[Generating, JsonObject] = {
    "chat": {"messages": {"type": "array", "minItems": 1, "items": _MESSAGE}},
    "completions": {"prompt": {"type": "string", "minLength": 1}},
}


def body_of(endpoint: Generating, **more: Any) -> JsonObject:
    """For ``openapi_extra`` of a route; ``more`` are further properties."""
    prompt = _PROMPTS[endpoint]
    own = {
        item.name: {"type": _TYPES[str(item.type)]}
        for item in fields(SamplingParams)
        if str(item.type) in _TYPES and item.name != "prompt_logprobs"  # which ``echo`` gives
    }
    stop = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    known = {**prompt, "model": {"type": "string"}, **own, "stop": stop, **more}
    if endpoint == "completions":
        known["logprobs"] = {"type": "integer"}
    else:
        del known["best_of"]
    return body_schema(known, *prompt)


def body_schema(fields: Given, *required: str, media: str = "application/json") -> JsonObject:
    """For ``openapi_extra`` of a route whose body has these ``fields``."""
    schema: JsonObject = {"type": "object"}
    if required:
        schema["required"] = list(required)
    if fields:
        schema["properties"] = fields
    return _request_body(schema, media)


def _request_body(schema: Given, media: str = "application/json") -> JsonObject:
    return {"requestBody": {"required": True, "content": {media: {"schema": schema}}}}


ANY_BODY = body_schema({})


class Body(BaseModel):
    """A body that has the fields of a subclass and no others."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @classmethod
    def read(cls, value: Any) -> Self:
        """Raises InputError naming what is missing, wrong or not supported."""
        require_object(value, "body")
        given = {name: one for name, one in value.items() if one is not None}
        unknown = next((name for name in given if name not in cls.model_fields), None)
        if unknown is not None and cls.model_config.get("extra") == "forbid":
            raise InputError("unsupported_parameter", f"{unknown[:60]!r} is not supported")
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            kind = "wrong_type" if first["type"].endswith("_type") else "invalid_value"
            code = "missing_parameter" if first["type"] == "missing" else kind
            where = ".".join(map(str, first["loc"]))[:100]
            raise InputError(code, f"{where}: {first['msg']}") from None

    @classmethod
    def described(cls) -> JsonObject:
        """For ``openapi_extra`` of a route that reads it."""
        return _request_body(cls.model_json_schema())
