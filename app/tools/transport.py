"""Transports to MCP servers with bounds: nothing that a server sends, or does not send, takes more
memory or time than it may. All of it runs in the event loop of ``ToolServers``."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from app.config.settings import ServerSettings
from runtimes.untrusted import visible

log = logging.getLogger(__name__)

_MOST_LINE = 32 * 2**20  # bytes of one message
_MOST_BYTES = 64 * 2**20  # of all messages after one request
_MOST_MESSAGES = 2000  # after one request
_TAIL = 2000  # bytes of what a server wrote to stderr last
_GRACE_S = 1.0  # to end by itself, and after SIGTERM
_WAIT_S = 0.02
_CONNECT_S = 30.0


@dataclass(slots=True)
class Traffic:
    """Messages of a server since our last request, and its last words."""

    messages: int = 0
    volume: int = 0  # bytes
    said: bytes = b""  # on stderr
    why: str = ""  # it was given up
    over: bool = False  # nothing more comes

    def count(self, size: int) -> bool:
        """Add a message of ``size`` bytes; False where these are too many."""
        self.messages, self.volume = self.messages + 1, self.volume + size
        if self.messages <= _MOST_MESSAGES and self.volume <= _MOST_BYTES:
            return True
        self.give_up("it sends messages without end")
        return False

    def give_up(self, why: str) -> None:
        """Read nothing more of it, because of what it has sent."""
        self.why, self.over = why, True

    def begin(self) -> None:
        """Count anew: a request of ours goes to the server."""
        self.messages = self.volume = 0

    @property
    def words(self) -> str:
        """Why it ended, as far as it is known."""
        lines = visible(self.said.decode(errors="replace"), lines=True).split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return self.why or last[:300]


@asynccontextmanager
async def process_streams(server: ServerSettings, traffic: Traffic) -> AsyncIterator[Any]:
    """The streams of a server that is a process; it ends with the block. Raises OSError where it
    cannot be started."""
    import anyio
    from mcp.client.stdio import get_default_environment

    command = server.command or ""
    process = await asyncio.create_subprocess_exec(
        shutil.which(command) or command,
        *server.args,
        env={**get_default_environment(), **server.env},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MOST_LINE,
        start_new_session=True,  # a terminal's Ctrl-C is for us, who then end it
    )
    incoming, read = anyio.create_memory_object_stream[Any](0)
    write, outgoing = anyio.create_memory_object_stream[Any](0)
    tasks = [
        asyncio.create_task(_receive(process, incoming, traffic)),
        asyncio.create_task(_send(process, outgoing, incoming)),
        asyncio.create_task(_listen(process, traffic)),
    ]
    try:
        yield read, write
    finally:
        read.close()
        write.close()
        try:
            await asyncio.shield(_end(process))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _receive(process: asyncio.subprocess.Process, incoming: Any, traffic: Traffic) -> None:
    """Pass the server's messages on, until it ends or says too much."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    assert process.stdout is not None
    async with incoming:
        while True:
            try:
                line = await process.stdout.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                traffic.over = True
                # Its last words on stderr may come after the end of its output.
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _GRACE_S)
                if (code := process.returncode or 0) < 0:
                    traffic.why = f"signal {-code} ended it"
                return
            except asyncio.LimitOverrunError:
                traffic.give_up(f"a message of it has more than {_MOST_LINE >> 20} MiB")
                return
            if not traffic.count(len(line)):
                return
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                log.info("no message of MCP: %s", visible(repr(line[:200])))
                continue
            try:
                await incoming.send(SessionMessage(message))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


async def _send(process: asyncio.subprocess.Process, outgoing: Any, incoming: Any) -> None:
    assert process.stdin is not None
    try:
        async with outgoing:
            async for one in outgoing:
                data = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(data.encode() + b"\n")
                await process.stdin.drain()
    except OSError:  # nobody reads it any more: what waits for an answer ends
        await incoming.aclose()


async def _listen(process: asyncio.subprocess.Process, traffic: Traffic) -> None:
    assert process.stderr is not None
    while piece := await process.stderr.read(_TAIL):
        traffic.said = (traffic.said + piece)[-_TAIL:]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close its input, and end it and what it has started when it does not go."""
    assert process.stdin is not None
    process.stdin.close()
    await _gone(process)
    if sys.platform == "win32":
        if process.returncode is None:
            process.kill()
    else:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            await _gone(process)
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:  # a grandchild may hold the pipes
        transport.close()


async def _gone(process: asyncio.subprocess.Process) -> None:
    """Wait a while for its end; not by ``wait``, which waits for the ends of its pipes too."""
    for _ in range(round(_GRACE_S / _WAIT_S)):
        if process.returncode is not None:
            return
        await asyncio.sleep(_WAIT_S)


@asynccontextmanager
async def http_streams(server: ServerSettings, traffic: Traffic) -> AsyncIterator[Any]:
    """The streams of a server at an address."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class Counted(httpx2.AsyncByteStream):
        """Body of a response, up to the most that a server may send."""

        def __init__(self, body: Any) -> None:
            self._body = body

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in self._body:
                if not traffic.count(len(piece)):
                    raise httpx2.ReadError(traffic.why)
                yield piece

        async def aclose(self) -> None:
            await self._body.aclose()

    async def came(response: httpx2.Response) -> None:
        # What is packed could be a thousand times as large.
        response.headers.pop("content-encoding", None)
        response.stream = Counted(response.stream)

    async with (
        httpx2.AsyncClient(
            headers={**server.headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(_CONNECT_S, read=None),  # the calls have limits of their own
            event_hooks={"response": [came]},
        ) as client,
        streamable_http_client(
            server.url or "", http_client=client, max_sse_event_size=_MOST_LINE
        ) as streams,
    ):
        yield streams
