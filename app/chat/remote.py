"""A model of an `ingot serve` as an engine: `ingot chat --url`. Tokens go there and come back, so
that everything of the chat holds as with a model of its own."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import fields, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from quantize.fromjson import GARBLED, from_json
from runtimes.api import EngineApi
from runtimes.chat import Message
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError, ModelError, RequestError, WorkerError
from runtimes.models.modelfile import ModelFile
from runtimes.request import (
    Chunk,
    Completion,
    FinishReason,
    Request,
    SamplingParams,
    Timings,
    Usage,
)
from runtimes.stream import Stream

log = logging.getLogger(__name__)

KEY = "INGOT_API_KEY"
_CONNECT_S = 10.0
_ANSWER_S = 3600.0  # until the next piece: others may be before it
_DEFAULTS = SamplingParams()
_SECONDS = ("queue_s", "prefill_s", "ttft_s", "decode_s", "total_s")


def _refusing(why: str) -> Callable[..., NoReturn]:
    """Stand for a method that a server does not offer."""

    def method(*_: object, **__: object) -> NoReturn:
        raise RequestError(why)

    return method


class RemoteEngine(EngineApi):
    """Made by ``connect``. What needs the keys and values of the server is not offered."""

    pid = None
    adapters: frozenset[str] = frozenset()  # a server's are its own
    context = slots = vocab_size = 0
    encode_continuation = _refusing("a server scores no texts: name a file")
    load_adapter = unload_adapter = _refusing("a server's adapters are its own")
    save_session = load_session = _refusing("a server saves what prompts begin with by itself")

    def __init__(self, server: _Server, name: str, about: Mapping[str, Any]) -> None:
        self._server, self.name = server, name
        self.where = server.netloc  # for people
        self._loaded = str(about.get("parent", name))  # of an alias, or a model with an adapter
        file = {"path": about["file"], "runtime": about["runtime"]}
        self._model = from_json(ModelFile, about["meta"] | file)
        self.context, self.vocab_size = int(about["context"]), self._model.vocab_size
        self.slots = int(about["slots"])  # shared by all clients of the server
        self._running: dict[str, _Asked] = {}  # from submit on
        self._lock = threading.Lock()

    @property
    def model(self) -> ModelFile:
        """The server's file; its path is its name there."""
        return self._model

    def encode(self, text: str, suffix: str | None = None) -> list[int]:
        """See ``EngineApi.encode``. Raises RequestError, or WorkerError where nobody answers."""
        return self._tokens({"prompt": text} | ({} if suffix is None else {"suffix": suffix}))

    def encode_chat(
        self,
        messages: Sequence[Message],
        template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """See ``EngineApi.encode_chat``; the template is the server's."""
        if template is not None:
            raise RequestError("a server uses the template of its model: leave --chat-template out")
        said: dict[str, Any] = {"messages": [dict(message) for message in messages]}
        if tools:
            said["tools"] = list(tools)
        if variables:
            said["chat_template_kwargs"] = dict(variables)
        return self._tokens(said)

    def submit(self, request: Request) -> Stream:
        """See ``EngineApi.submit``."""
        asked = _Asked(request, Stream(request.id, self.cancel))
        with self._lock:
            self._running[request.id] = asked
        threading.Thread(target=self._answer, args=(asked,), name="ingot-remote").start()
        return asked.stream

    def cancel(self, request_id: str) -> None:
        """Close the request's connection: the server ends it then. One that has none yet ends at
        once, and is never sent."""
        with self._lock:
            asked = self._running.get(request_id)
            if asked is None:
                return
            asked.cancelled, connection = True, asked.connection
            if connection is None:
                del self._running[request_id]
        if connection is None:
            asked.finish(FinishReason.CANCELLED)
        elif connection.sock is not None:
            with suppress(OSError):  # it was closed already; else who reads it finds the end then
                connection.sock.shutdown(socket.SHUT_RDWR)

    def stats(self) -> EngineStats:
        """Counters of the server's engine. Raises as ``encode``."""
        said = self._server.ask("/v1/stats")["models"].get(self._loaded)
        if not said:
            raise WorkerError(f"{self.where} has unloaded {self.name}")
        return from_json(EngineStats, said)

    def trim(self) -> int:
        """Do nothing, return 0: the cache serves the server's other clients, too."""
        return 0

    def close(self, *, drain: bool = False) -> None:
        """End what was asked; the server runs on."""
        with self._lock:
            running = list(self._running)
        for request_id in running:
            self.cancel(request_id)

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        ids: list[int] = self._server.ask("/v1/tokenize", {"model": self.name, **body})["tokens"]
        return ids

    def _answer(self, asked: _Asked) -> None:
        reason, wrong = None, None
        try:
            self._read(asked)
        except Exception as error:
            reason = FinishReason.CANCELLED if asked.cancelled else FinishReason.ERROR
            if not asked.cancelled:
                log.info("a request to %s failed: %s", self.where, error)
                wrong = str(error) if isinstance(error, IngotError) else self._server.lost(error)
        with self._lock:
            ours = self._running.pop(asked.request.id, None)
        if ours is not None:  # else it was cancelled while connecting
            asked.finish(reason, wrong)

    def _read(self, asked: _Asked) -> None:
        with closing(self._server.connect()) as connection:
            with self._lock:
                if asked.cancelled:
                    return
                asked.connection = connection
            body = _body(self.name, asked.request)
            for event in self._server.events("/v1/completions", body, connection):
                asked.take(event)


def connect(model: str) -> RemoteEngine:
    """The model of a server that ``model`` names (``host.is_url``); it is loaded there if need be.
    INGOT_API_KEY is the key. Blocks.

    Raises ModelError for a server that does not answer, is none of Ingot's, or has no such model.
    """
    address, _, name = model.partition("#")
    try:
        server = _Server(address)
        names = [one["id"] for one in server.ask("/v1/models")["data"]]
        if name and name not in names:
            raise ModelError(f"{address} has no model {name!r}; it has {', '.join(names)}")
        name = name or names[0]
        # This loads it.
        server.ask("/v1/tokenize", {"model": name, "prompt": "."})
        about = server.ask(f"/v1/models/{quote(name)}")
        return RemoteEngine(server, name, about)
    except (*GARBLED, IndexError) as error:
        raise ModelError(f"{address} is no server of Ingot: {error!r}"[:300]) from error
    except (RequestError, WorkerError) as error:
        raise ModelError(str(error)) from error


class _Server:
    """Requests to one address."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.netloc = parts.netloc
        self._secure = parts.scheme == "https"
        # The address may be the base URL that other clients are given.
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            self._headers["Authorization"] = f"Bearer {key}"

    def connect(self) -> HTTPConnection:
        """Raises WorkerError."""
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self.netloc, timeout=_CONNECT_S)
        try:
            connection.connect()
        except OSError as error:
            raise WorkerError(self.lost(error)) from error
        connection.sock.settimeout(_ANSWER_S)
        return connection

    def lost(self, error: Exception) -> str:
        return f"{self.netloc} does not answer: {error or type(error).__name__}"

    def events(self, path: str, body: dict[str, Any], connection: HTTPConnection) -> Iterator[Any]:
        """Each event's JSON until the last. Raises as ``ask``."""
        for line in self._response(connection, path, body):
            data = line.strip().removeprefix(b"data: ")
            if data == b"[DONE]":
                return
            if data:
                yield json.loads(data)
        raise WorkerError(f"{self.netloc} has ended the answer before its end")

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of a path, or of what a body that is sent there gets. Raises WorkerError, and
        RequestError for what the server refuses."""
        with closing(self.connect()) as connection:
            try:
                return json.loads(self._response(connection, path, body).read())
            except (OSError, HTTPException) as error:
                raise WorkerError(self.lost(error)) from error

    def _response(
        self, connection: HTTPConnection, path: str, body: dict[str, Any] | None
    ) -> HTTPResponse:
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, self._path + path, data, self._headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _error(response.status, response.read())
        return response


class _Asked:
    """A request, and what has come of its answer."""

    def __init__(self, request: Request, stream: Stream) -> None:
        self.request, self.stream = request, stream
        self.connection: HTTPConnection | None = None  # None while connecting
        self.cancelled = False
        self._text, self._thought, self._ids = "", "", list[int]()
        self._usage = Usage(len(request.prompt), 0)
        self._timings: dict[str, float] = {}
        self._reason = FinishReason.ERROR

    def take(self, event: dict[str, Any]) -> None:
        """Put the piece that an event brings into the stream. Raises WorkerError for an error."""
        if "error" in event:
            raise WorkerError(event["error"]["message"])
        if usage := event.get("usage"):
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
            counted = usage["prompt_tokens"], usage["completion_tokens"]
            self._usage = Usage(*counted, cached, thought)
            self._timings = event.get("timings") or {}
        for choice in event["choices"]:
            if choice["finish_reason"] is not None:
                self._reason = FinishReason(choice["finish_reason"])
            ids, thought = tuple(choice.get("token_ids") or ()), choice.get("reasoning_content", "")
            self._text += choice["text"]
            self._thought += thought
            self._ids += ids
            if thought or choice["text"] or ids:
                self.stream.put(Chunk(thought or choice["text"], ids, thought=bool(thought)))

    def finish(self, reason: FinishReason | None = None, error: str | None = None) -> None:
        """End the stream, for another reason than the server's if one is given."""
        usage = self._usage
        seconds: dict[str, Any] = {name: self._timings.get(name) or 0.0 for name in _SECONDS}
        if not usage.completion_tokens:
            usage = replace(usage, completion_tokens=len(self._ids))
        timings = Timings(
            **seconds,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        )
        said = self._text, tuple(self._ids), reason or self._reason, usage, timings
        thought = self._thought or None
        self.stream.finish(Completion(self.request.id, *said, error=error, thought=thought))


_FORMS = {"json_schema": "json", "choices": "choice"}  # as ``structured_outputs`` names them


def _body(name: str, request: Request) -> dict[str, Any]:
    params = request.params
    changed = {
        field.name: value
        for field in fields(params)
        if (value := getattr(params, field.name)) != getattr(_DEFAULTS, field.name)
        and field.name != "thinking"  # its template was told with the prompt
    }
    if (wanted := changed.pop("constraint", None)) is not None:
        source = json.loads(wanted.source) if wanted.kind == "choices" else wanted.source
        changed["structured_outputs"] = {_FORMS.get(wanted.kind, wanted.kind): source}
    if request.thinking is not None:
        changed["thinking_at"] = request.thinking.at
    return {
        # The server's defaults may be others.
        "temperature": params.temperature,
        "max_tokens": params.max_tokens,
        **changed,
        "model": name,
        "prompt": request.prompt,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def _error(status: int, text: bytes) -> IngotError:
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answers with status {status}"
    if status == 401:
        message += f" ({KEY} is the key)"
    return WorkerError(message) if status >= 500 else RequestError(message)
