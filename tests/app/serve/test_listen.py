"""The socket of a server."""

from __future__ import annotations

import asyncio
import socket

from app.serve.options import ServeOptions
from app.serve.server import listen


async def test_small_answers_do_not_wait_for_the_client_s_acknowledgement():
    """A client that keeps its connection would else get each of them 40 ms later."""
    seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        seen.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with listen(ServeOptions(port=0)) as listening:
        async with await asyncio.start_server(answer, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            assert await seen
            writer.close()
