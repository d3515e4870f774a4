"""A connection as uvicorn serves it, which ends itself where its client is too slow."""

import asyncio
import logging

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.serve.options import MOST_HEAD_BYTES

logger = logging.getLogger(__name__)

HEAD_S = 20.0  # how long the head of a request may take to come
STALL_S = 60.0  # how long a client may read nothing of what it is sent
MOST_CONNECTIONS = 2000


class _Http(h11.Connection):
    """Frames the pieces of a streamed answer itself. There is one a token, and by way of h11's
    states the frame takes as long as the piece."""

    _chunked = False

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """See h11; ``send`` joins what this gives."""
        sending = self._chunked and self.our_state is h11.SEND_BODY
        if sending and isinstance(event, h11.Data) and event.data:
            return [b"%x\r\n" % len(event.data), event.data, b"\r\n"]
        said = super().send_with_data_passthrough(event)
        if isinstance(event, h11.Response):
            self._chunked = b"\r\ntransfer-encoding: chunked\r\n" in b"".join(said or ()).lower()
        return said


class Connection(H11Protocol):
    """Ends where the head of the next request does not come in time, or the client does not read
    its answer. Where there are too many, the one that has been silent for longest goes."""

    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _before: object = None  # the request that was there when it was last looked at
    _left = 0  # bytes that were to be sent then
    _since = 0.0  # when it became silent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        self.conn = _Http(h11.SERVER, MOST_HEAD_BYTES)
        super().connection_made(transport)
        self._since = self.loop.time()
        self._waiting = self.loop.call_later(HEAD_S, self._look)
        if len(self.connections) > MOST_CONNECTIONS:
            found = [one for one in self.connections if isinstance(one, Connection) and one._silent]
            oldest = min(found, key=lambda one: one._since, default=self)
            if oldest is self:
                logger.info("%s: all connections are in use; 503", self._name)
            else:
                oldest._abort("makes room for another connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        for timer in (self._waiting, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """An answer has been sent."""
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """See asyncio."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_S, self._abort, "does not read its answer")

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def send_400_response(self, msg: str) -> None:
        """Of what is no HTTP, or has too long a head."""
        logger.info("%s: %s", self._name, msg)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # its request has been answered
            self.transport.close()

    @property
    def _silent(self) -> bool:
        """Whether it is between requests."""
        ended = self.cycle is None or self.cycle.response_complete
        return ended and not self.transport.is_closing()

    @property
    def _name(self) -> str:
        return "{}:{}".format(*self.client) if self.client else "a client"

    def _look(self) -> None:
        cycle, left = self.cycle, self.transport.get_write_buffer_size()
        if self.transport.is_closing() and left == self._left:
            self._abort("does not read its answer")
        elif self._silent and cycle is self._before:
            logger.info("%s: no request came in time", self._name)
            self.transport.close()
        self._before, self._left = cycle, left
        self._waiting = self.loop.call_later(HEAD_S, self._look)

    def _abort(self, why: str) -> None:
        logger.info("%s: %s", self._name, why)
        self.transport.abort()
