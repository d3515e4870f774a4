"""``ToolServers``: connections to the MCP servers of the settings, and the calls of their tools.

They live in an event loop in a thread of its own. The methods may be called from any thread; those
that say so block.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from app.config.settings import ServerSettings, ToolSettings
from app.openai.tools import ToolFields, Tools, tools_of
from app.openai.validation import MOST_TOOLS, Ignored, InputError
from app.tools.calls import CallState, ToolCall
from app.tools.transport import Traffic, http_streams, process_streams
from runtimes.errors import IngotError, RequestError
from runtimes.untrusted import visible

log = logging.getLogger(__name__)

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_NO_NAME = re.compile(r"[^\w.-]", re.ASCII)
_MOST_NAME = 64  # characters of a function's name
_MOST_ABOUT = 2000  # characters of a description
_MOST_PAGES = 20
_CLOSE_S = 5.0
_Value = TypeVar("_Value")


class ToolServerError(IngotError):
    """A server of tools does not start, or is not there any more."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool under the name by which a model calls it."""

    server: str
    tool: str  # its name at the server
    function: Mapping[str, Any]  # as a model is told it


class ToolServers:
    """Made of the settings; nothing runs until ``open``."""

    def __init__(self, settings: ToolSettings) -> None:
        self.settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        # In the loop's thread alone.
        self._connections: dict[str, _Connection] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._offered: dict[str, OfferedTool] = {}  # by functions' names; replaced, not changed

    @property
    def names(self) -> tuple[str, ...]:
        """Servers of the settings."""
        return tuple(self.settings.servers)

    @property
    def defaults(self) -> tuple[str, ...]:
        """Servers that are on in a new chat."""
        return tuple(name for name, one in self.settings.servers.items() if one.get("on"))

    def require(self, names: Sequence[str]) -> None:
        """Raise RequestError for a name that the settings lack."""
        for name in names:
            if name not in self.settings.servers:
                there = ", ".join(self.names) or "none; docs/tools.md shows how to add one"
                raise RequestError(f"there is no tool server {name!r}; configured: {there}")

    def open(self, names: Sequence[str]) -> dict[str, str]:
        """Start those of ``names`` that do not run; return what went wrong, by their names. Blocks.
        Raises RequestError where the package `mcp` is missing."""
        if not names:
            return {}
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise RequestError("tools need the package mcp: `pip install 'ingot[mcp]'`") from None
        return self._run(self._open(names)).result()

    @property
    def functions(self) -> tuple[str, ...]:
        """Names by which a model calls the tools of the servers that have been opened."""
        return tuple(self._offered)

    def offered(self, names: Sequence[str]) -> list[OfferedTool]:
        """Return the tools of those of ``names`` that have been opened."""
        return [one for one in self._offered.values() if one.server in names]

    def tools(self, names: Sequence[str]) -> Tools | None:
        """Return the tools of ``names`` as a task has them; None where there are none."""
        found = tuple(one.function for one in self.offered(names))[:MOST_TOOLS]
        return Tools(found) if found else None

    def server_of(self, function: str) -> str:
        """Name the server of a function; empty for an unknown one."""
        found = self._offered.get(function)
        return found.server if found else ""

    def call(self, call: ToolCall, context: int) -> Future[ToolCall]:
        """Make a call, whose result may take about half of a model's ``context``, as a token has
        four bytes or so; the future has the call with its outcome. Cancelling it cancels the call.
        """
        most = min(self.settings.kib * 1024, 2 * context)
        return self._run(self._call(call, most))

    def close(self) -> None:
        """End every server. Blocks for seconds at most."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        ending = asyncio.run_coroutine_threadsafe(self._close(), loop)
        with suppress(FutureTimeoutError):
            ending.result(_CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)

    def _run(self, work: Coroutine[Any, Any, _Value]) -> Future[_Value]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                run = self._loop.run_forever
                threading.Thread(target=run, name="ingot-tools", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    # In the loop

    async def _open(self, names: Sequence[str]) -> dict[str, str]:
        problems: dict[str, str] = {}
        opened = await asyncio.gather(*map(self._connected, names), return_exceptions=True)
        for name, found in zip(names, opened, strict=True):
            if isinstance(found, _Connection):
                self._offer(name, found.tools)
            elif isinstance(found, IngotError):
                problems[name] = str(found)
            else:
                raise found
        return problems

    async def _connected(self, name: str) -> _Connection:
        """A server that runs, started now if need be. Raises ToolServerError."""
        async with self._opening.setdefault(name, asyncio.Lock()):
            found = self._connections.get(name)
            if found is None or not found.alive:
                if found is not None:
                    found.stop()
                found = _Connection(name, _settings_of(name, self.settings.servers[name]))
                await found.begun(self.settings.seconds)
                self._connections[name] = found
            return found

    def _offer(self, server: str, tools: Sequence[Any]) -> None:
        """Give ``tools`` names that no other server's have. They stay as long as this object."""
        known = dict(self._offered)
        if any(one.server == server for one in known.values()):
            return
        for tool in tools:
            name = _NO_NAME.sub("_", tool.name)[:_MOST_NAME]
            if name in known:
                name = _NO_NAME.sub("_", f"{server}_{tool.name}")[:_MOST_NAME]
            try:
                function = _function(tool, name)
            except InputError as error:
                log.warning("the tool %s of %s is left out: %s", visible(name), server, error)
                continue
            if name not in known:
                known[name] = OfferedTool(server, tool.name, function)
        self._offered = known

    async def _call(self, call: ToolCall, most: int) -> ToolCall:
        began, found = time.monotonic(), self._offered.get(call.name)
        values, seconds = call.values, self.settings.seconds

        def failed(why: str) -> ToolCall:
            return call.ended(CallState.FAILED, why, time.monotonic() - began)

        if found is None or not isinstance(values, dict):
            return failed("there is no such tool" if found is None else "its arguments are no JSON")
        try:
            connection = await self._connected(found.server)
        except IngotError as error:
            return failed(str(error))
        try:
            async with asyncio.timeout(seconds):
                text, wrong = await connection.call(found.tool, values)
        except TimeoutError:
            connection.stop()
            return failed(f"no answer within {seconds} s; {found.server} was ended")
        except ToolServerError as error:
            return failed(str(error))
        state = CallState.FAILED if wrong else CallState.DONE
        return call.ended(state, _cut(text, most), time.monotonic() - began)

    async def _close(self) -> None:
        for connection in self._connections.values():
            connection.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)


class _Connection:
    """One server, from its start to its end."""

    def __init__(self, name: str, server: ServerSettings) -> None:
        self._name, self._server = name, server
        self._traffic = Traffic()
        self._ending = asyncio.Event()
        self._client: Any = None
        self.tools: list[Any] = []
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._serve())

    @property
    def alive(self) -> bool:
        return self._client is not None and not self._traffic.over

    async def begun(self, seconds: float) -> None:
        """Wait until it is connected, and its tools are listed. Raises ToolServerError."""
        try:
            await asyncio.wait_for(self._ready, seconds)
        except (TimeoutError, asyncio.CancelledError) as error:
            self.stop()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise ToolServerError(f"{self._name} does not answer within {seconds} s") from None

    async def _serve(self) -> None:
        from mcp import Client
        from mcp_types import Implementation

        streams = http_streams if self._server.url else process_streams
        client = Client(
            streams(self._server, self._traffic),
            client_info=Implementation(name="ingot", version="0"),
            cache=None,
        )
        try:
            async with client:
                self.tools = await _listed(client)
                self._client = client
                if not self._ready.done():
                    self._ready.set_result(None)
                await self._ending.wait()
        except BaseException as error:  # those of task groups too
            log.info("the tool server %s ended", self._name, exc_info=error)
            if not self._ready.done():
                self._ready.set_exception(ToolServerError(self._ended("does not start", error)))
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._client = None

    async def call(self, tool: str, values: dict[str, Any]) -> tuple[str, bool]:
        """The result as a text, and whether it is an error. Raises ToolServerError."""
        from mcp_types import (
            CONNECTION_CLOSED,
            CallToolRequest,
            CallToolRequestParams,
            CallToolResult,
        )

        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=values))
        self._traffic.begin()
        try:
            # Not ``call_tool``, which matches a result to the patterns of the server's own schema:
            # one can be written that takes for ever.
            result = await self._client.session.send_request(request, CallToolResult)
        except Exception as error:
            gone = getattr(error, "code", None) == CONNECTION_CLOSED or not self.alive
            if gone:
                self.stop()
            raise ToolServerError(
                self._ended("ended within the call", error) if gone else _words(error)
            ) from error
        return _text(result), bool(result.is_error)

    def stop(self) -> None:
        """End it, soon."""
        if self._client is None and not self._ending.is_set():
            self.task.cancel()  # it is still starting
        self._ending.set()
        self._client = None

    def _ended(self, what: str, error: BaseException) -> str:
        why = self._traffic.words or _words(error)
        return f"{self._name} {what}: {why}" if why else f"{self._name} {what}"


def _settings_of(name: str, given: Mapping[str, Any]) -> ServerSettings:
    """The settings of a server, with the variables of the environment that they name. Raises
    ToolServerError."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            said = f"mcp.servers.{name} names the variable {found[1]}, which is not set"
            raise ToolServerError(said)
        return json.dumps(os.environ[found[1]])[1:-1]

    server = ServerSettings(**json.loads(_VARIABLE.sub(value, json.dumps(given))))
    if (server.command is None) == (server.url is None):
        raise ToolServerError(f"mcp.servers.{name} needs a command or a url, and not both")
    return server


async def _listed(client: Any) -> list[Any]:
    """All its tools, up to the most that a request may have."""
    tools: list[Any] = []
    cursor = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) >= MOST_TOOLS:
            break
    return tools[:MOST_TOOLS]


def _function(tool: Any, name: str) -> Mapping[str, Any]:
    """A tool as a function. Raises InputError for one that no model can be told."""
    about = visible(tool.description or tool.title or "", lines=True)[:_MOST_ABOUT]
    function = {"name": name, "description": about, "parameters": tool.input_schema}
    body = {"tools": [{"type": "function", "function": function}]}
    found = tools_of(body, ToolFields(inside=True), Ignored(strict=False))
    assert found is not None
    found.schema(found.functions[0])  # that it can be followed
    return found.functions[0]


def _text(result: Any) -> str:
    """The texts of a result; of anything else, its kind."""
    parts = [_part(one) for one in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)


def _part(part: Any) -> str:
    if part.type == "text":
        return str(part.text)
    if part.type == "resource" and hasattr(part.resource, "text"):
        return str(part.resource.text)
    about = [part.type, getattr(part, "mime_type", None), str(getattr(part, "uri", "") or "")]
    return f"[{' '.join(filter(None, about))}: not a text]"


def _cut(text: str, most: int) -> str:
    """At most ``most`` bytes of ``text``, and words that say so; control characters are shown."""
    raw = text.encode(errors="replace")
    kept = visible(raw[:most].decode(errors="ignore"), lines=True)
    if len(raw) <= most:
        return kept
    return f"{kept}\n[cut here: {most:,} of {len(raw):,} bytes]"


def _words(error: BaseException) -> str:
    """The first error of a group, in a line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(visible(str(error) or type(error).__name__).split())[:300]
