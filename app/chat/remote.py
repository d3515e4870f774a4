"""A model of an `ingot serve` as an engine: `ingot chat --url`. Tokens go there and come back, so
that everything of the chat holds as with a model of its own."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from runtimes.api import EngineApi
from runtimes.chat import Message
from runtimes.engine.metrics import EngineStats, Percentiles
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
_SCHEMES = ("http://", "https://")
_DEFAULTS = SamplingParams()
_SECONDS = ("queue_s", "prefill_s", "ttft_s", "decode_s", "total_s")


def is_url(model: str) -> bool:
    """Whether a MODEL is one of a server: its address, with #NAME behind it for another model than
    the first."""
    return model.startswith(_SCHEMES)


class RemoteEngine(EngineApi):
    """Made by ``connect``. What needs the keys and values of the server is not offered."""

    pid = None
    adapters: frozenset[str] = frozenset()  # a server's are its own
    context = slots = vocab_size = 0

    def __init__(self, server: _Server, name: str, about: Mapping[str, Any]) -> None:
        said = _fields_of(ModelFile, about["meta"])
        self._server, self.name = server, name
        self.where = server.netloc  # for people
        self._loaded = str(about.get("parent", name))  # of an alias, or a model with an adapter
        self._model = ModelFile(path=Path(about["file"]), runtime=about["runtime"], **said)
        self.context, self.vocab_size = int(about["context"]), self._model.vocab_size
        self.slots = int(about["slots"])  # shared by all clients of the server
        # From submit on; without a connection, and with the stream, while connecting.
        self._running: dict[str, HTTPConnection | Stream] = {}
        self._cancelled: set[str] = set()
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

    def encode_continuation(
        self,
        context: str | Sequence[Message],
        continuation: str,
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[list[int], int]:
        """Raises RequestError: a server has no path for it."""
        raise RequestError("a server scores no texts: name a file")

    def submit(self, request: Request) -> Stream:
        """See ``EngineApi.submit``."""
        stream = Stream(request.id, self.cancel)
        with self._lock:
            self._running[request.id] = stream
        asks = threading.Thread(target=self._answer, args=(request, stream), name="ingot-remote")
        asks.start()
        return stream

    def cancel(self, request_id: str) -> None:
        """Close the request's connection: the server ends it then. One that has none yet ends at
        once, and is never sent."""
        with self._lock:
            found = self._running.get(request_id)
            if isinstance(found, Stream):
                del self._running[request_id]
            elif found is not None:
                self._cancelled.add(request_id)
        if isinstance(found, Stream):
            found.finish(_nothing(request_id))
        elif found is not None:
            _shut(found)

    def stats(self) -> EngineStats:
        """Counters of the server's engine. Raises as ``encode``."""
        said = dict(self._server.ask("/v1/stats")["models"].get(self._loaded) or {})
        if not said:
            raise WorkerError(f"{self.where} has unloaded {self.name}")
        for name in ("ttft_s", "tpot_s"):
            bins = tuple((end, count) for end, count in said[name].pop("bins"))
            said[name] = Percentiles(**said[name], bins=bins)
        return EngineStats(**_fields_of(EngineStats, said))

    def load_adapter(self, name: str, path: Path) -> None:
        """Raises RequestError, as ``unload_adapter`` does."""
        raise RequestError("a server's adapters are its own")

    def unload_adapter(self, name: str) -> None:
        """Raises RequestError."""
        raise RequestError("a server's adapters are its own")

    def trim(self) -> int:
        """Do nothing, return 0: the cache serves the server's other clients, too."""
        return 0

    def save_session(self, tokens: Sequence[int], path: Path, adapter: str | None = None) -> int:
        """Raises RequestError: the server saves by itself."""
        raise RequestError("a server saves what prompts begin with by itself")

    def load_session(self, path: Path, adapter: str | None = None) -> list[int]:
        """Raises RequestError."""
        raise RequestError("a server saves what prompts begin with by itself")

    def close(self, *, drain: bool = False) -> None:
        """End what was asked; the server runs on."""
        with self._lock:
            running = list(self._running)
        for request_id in running:
            self.cancel(request_id)

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        ids: list[int] = self._server.ask("/v1/tokenize", {"model": self.name, **body})["tokens"]
        return ids

    def _answer(self, request: Request, stream: Stream) -> None:
        parts, failed = _Parts(request), None
        try:
            self._read(request, stream, parts)
        except Exception as error:
            failed = error
        with self._lock:
            if self._running.pop(request.id, None) is None:
                return  # it was cancelled while connecting
            cancelled = request.id in self._cancelled
            self._cancelled.discard(request.id)
        if failed is not None and cancelled:
            parts.reason = FinishReason.CANCELLED
        elif failed is not None:
            log.info("a request to %s failed: %s", self.where, failed)
            told = str(failed) if isinstance(failed, IngotError) else self._server.lost(failed)
            parts.reason, parts.error = FinishReason.ERROR, told
        stream.finish(parts.completion())

    def _read(self, request: Request, stream: Stream, parts: _Parts) -> None:
        connection = self._server.connect()
        with self._lock:
            ours = request.id in self._running
            if ours:
                self._running[request.id] = connection
        try:
            if not ours:
                return
            for event in self._server.events(
                "/v1/completions", _body(self.name, request), connection
            ):
                chunk = parts.take(event)
                if chunk is not None:
                    stream.put(chunk)
        finally:
            connection.close()


def connect(model: str) -> RemoteEngine:
    """The model of a server that ``model`` names, see ``is_url``; it is loaded there if need be.
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
    except (KeyError, IndexError, TypeError, ValueError) as error:
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
        connection = self.connect()
        try:
            text = self._response(connection, path, body).read()
        except (OSError, HTTPException) as error:
            raise WorkerError(self.lost(error)) from error
        finally:
            connection.close()
        return json.loads(text)

    def _response(
        self, connection: HTTPConnection, path: str, body: dict[str, Any] | None
    ) -> HTTPResponse:
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, self._path + path, data, self._headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _error(response.status, response.read())
        return response


class _Parts:
    """Text, thought and tool calls of an answer so far."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._text, self._thought, self._ids = "", "", list[int]()
        self._usage = Usage(len(request.prompt), 0)
        self._timings: dict[str, float] = {}
        self.reason, self.error = FinishReason.ERROR, None  # type: tuple[FinishReason, str | None]

    def take(self, event: dict[str, Any]) -> Chunk | None:
        """The piece that an event brings. Raises WorkerError for an error."""
        if "error" in event:
            raise WorkerError(event["error"]["message"])
        if usage := event.get("usage"):
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
            told = usage["prompt_tokens"], usage["completion_tokens"]
            self._usage = Usage(*told, cached, thought)
            self._timings = event.get("timings") or {}
        for choice in event["choices"]:
            if choice["finish_reason"] is not None:
                self.reason = FinishReason(choice["finish_reason"])
            ids, thought = tuple(choice.get("token_ids") or ()), choice.get("reasoning_content", "")
            self._text += choice["text"]
            self._thought += thought
            self._ids += ids
            if thought or choice["text"] or ids:
                return Chunk(thought or choice["text"], ids, thought=bool(thought))
        return None

    def completion(self) -> Completion:
        usage = self._usage
        if not usage.completion_tokens:
            usage = replace(usage, completion_tokens=len(self._ids))
        seconds: dict[str, Any] = {name: self._timings.get(name) or 0.0 for name in _SECONDS}
        timings = Timings(
            **seconds,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        )
        return Completion(
            self._request.id,
            self._text,
            tuple(self._ids),
            self.reason,
            usage,
            timings,
            error=self.error,
            thought=self._thought or None,
        )


def _fields_of(kind: type[Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Values that a server has ``said``, of the fields that ``kind`` has in this version."""
    names = (field.name for field in fields(kind))
    return {name: said[name] for name in names if name in said}


def _nothing(request_id: str) -> Completion:
    """Completion of a request that was cancelled before it was sent."""
    timings = Timings(0.0, 0.0, 0.0, 0.0, 0.0, prompt_tokens=0, completion_tokens=0)
    return Completion(request_id, "", (), FinishReason.CANCELLED, Usage(0, 0), timings)


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


def _shut(connection: HTTPConnection) -> None:
    """From another thread than the one that reads: it finds the end then."""
    if connection.sock is not None:
        with suppress(OSError):  # it was closed already
            connection.sock.shutdown(socket.SHUT_RDWR)
