"""A connection as uvicorn serves it: heads of bounded size, input at a bounded pace, and an end
where its client is too slow, or has its answer before all of its body has come."""

import asyncio
import logging
import time
from typing import Any, cast

import h11
from uvicorn.protocols.http.flow_control import CLOSE_HEADER, FlowControl
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from app.serve.errors import HttpError, error_response
from app.serve.options import MOST_BODY_BYTES, MOST_HEAD_BYTES, MOST_HEAD_LINES

logger = logging.getLogger(__name__)

HEAD_S = 20.0  # how long the head of a request may take to come
STALL_S = 60.0  # how long a client may read nothing of what it is sent
LINGER_S = 5.0  # how long the rest of a body may come after its answer, so that this is read
MOST_CONNECTIONS = 2000
_EVENTS = 64  # pieces of input that are looked at in one go
_AT_ONCE_S = 0.005  # of the loop's time, which the input of a request takes without a rest
_MOST_S = 1.0  # of the loop's time; a request whose input takes longer is ended where it is
_LEAST_BYTES = 2**21  # for each such second: chunks of a few bytes
_READ_S = 2e-5  # of the loop's time: what a read costs before its bytes are looked at
_SHARE = 0.03  # of the loop's time, for all input that takes longer, beside other requests
_SHARE_ALONE = 0.5  # the same where there is no other request
_LINGER_PAUSE_S = 0.01  # between reads of what is thrown away
_HEAD_ENDS = (b"\n\r\n", b"\n\n")


class _Http(h11.Connection):
    """Frames the pieces of a streamed answer itself. There is one a token, and by way of h11's
    states the frame takes as long as the piece.

    An answer that comes before the whole body says that the connection ends. At most ``left``
    events are given out; ``behind`` says whether there may be more. ``refusal`` is the answer to
    what is no HTTP, or has too large a head.
    """

    left = _EVENTS
    behind = False
    refusal: HttpError | None = None
    _chunked = False

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """See h11; ``send`` joins what this gives."""
        sending = self._chunked and self.our_state is h11.SEND_BODY
        if sending and isinstance(event, h11.Data) and event.data:
            return [b"%x\r\n" % len(event.data), event.data, b"\r\n"]
        if isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY:
            headers = [*event.headers.raw_items(), CLOSE_HEADER]
            event = h11.Response(
                status_code=event.status_code, headers=headers, reason=event.reason
            )
        said = super().send_with_data_passthrough(event)
        if isinstance(event, h11.Response):
            self._chunked = b"\r\ntransfer-encoding: chunked\r\n" in b"".join(said or ()).lower()
        return said

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """See h11."""
        if self.left <= 0:
            self.behind = True
            return h11.NEED_DATA
        self.left -= 1
        if self.their_state is h11.IDLE:
            self._check_head()
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                self.refusal = _too_large()
            else:
                self.refusal = HttpError(400, "invalid_http", "Invalid HTTP request received.")
            raise

    def _check_head(self) -> None:
        """Raises RemoteProtocolError for one that is too large, before time goes into its lines."""
        data, _ = self.trailing_data
        ends = [at for at in map(data.find, _HEAD_ENDS) if at >= 0]
        head = data[: min(ends, default=len(data))]
        if len(head) > MOST_HEAD_BYTES or head.count(b"\n") > MOST_HEAD_LINES:
            self.refusal = _too_large()
            raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)


def _too_large() -> HttpError:
    said = f"at most {MOST_HEAD_BYTES // 2**10} KiB and {MOST_HEAD_LINES} lines"
    return HttpError(431, "headers_too_large", f"the head of a request may have {said} here")


class _Transport:
    """The transport of a connection, for uvicorn, which calls ``end`` where it would close it."""

    def __init__(self, connection: "Connection", own: asyncio.Transport) -> None:
        self._connection, self._own = connection, own
        self.write, self.close = own.write, connection.end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def is_closing(self) -> bool:
        return self._connection.lingers or self._own.is_closing()


class _Flow(FlowControl):
    """Does not read on while the connection rests."""

    resting = False

    def rest(self) -> None:
        """Read nothing until ``go_on``, whatever the application asks for."""
        self.resting = True
        if not self.read_paused:
            self._transport.pause_reading()

    def go_on(self) -> None:
        self.resting = False
        if not self.read_paused:
            self._transport.resume_reading()

    def pause_reading(self) -> None:
        """See uvicorn."""
        if not self.resting:
            super().pause_reading()
        self.read_paused = True

    def resume_reading(self) -> None:
        """See uvicorn."""
        if not self.resting:
            super().resume_reading()
        self.read_paused = False


class _Turns:
    """When long input is read on: all connections with such input share a part of the loop's
    time."""

    _next = 0.0

    def wait_s(self, now: float, spent: float, share: float) -> float:
        """How long a connection rests that has just taken ``spent`` seconds."""
        self._next = max(now, self._next) + spent / share
        return self._next - now


_turns = _Turns()


class Connection(H11Protocol):
    """Ends where the head of the next request does not come in time, or the client does not read
    its answer. Where there are too many, the one that has been silent for longest goes, else the
    oldest one whose request has not all come.

    Input that takes long to read, such as a body in chunks of a byte, rests between its pieces.
    After an answer that came before the whole body, the connection ends: what still comes is thrown
    away for a moment, so that the client gets to read the answer.
    """

    conn: _Http
    flow: _Flow
    lingers = False  # has its answer, and ends
    _own: asyncio.Transport
    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _resting: asyncio.TimerHandle | None = None
    _lingering: asyncio.TimerHandle | None = None
    _before: object = None  # the request that was there when it was last looked at
    _left = 0  # bytes that were to be sent then
    _since = 0.0  # when it became silent
    _spent = 0.0  # seconds of the loop's time that the input of this request has taken
    _came = 0  # bytes of this request
    _thrown_away = 0  # bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        self.conn, self._own = _Http(h11.SERVER, MOST_HEAD_BYTES), transport
        super().connection_made(cast(asyncio.Transport, _Transport(self, transport)))
        self.flow = _Flow(transport)
        self._since = self.loop.time()
        self._waiting = self.loop.call_later(HEAD_S, self._look)
        if len(self.connections) > MOST_CONNECTIONS:
            found = [one for one in self.connections if isinstance(one, Connection)]
            found = [one for one in found if one._silent or one._unfinished]
            oldest = min(found, key=lambda one: (one._unfinished, one._since), default=self)
            if oldest is self:
                logger.info("%s: all connections are in use; 503", self._name)
            else:
                oldest._abort("makes room for another connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        for timer in (self._waiting, self._stalled, self._resting, self._lingering):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self.lingers:
            self._throw_away(len(data))
            return
        self._spent += _READ_S
        self._came += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        """See uvicorn; what has come is looked at piece by piece, with rests where it takes
        long."""
        if self._resting is not None:
            return
        self.conn.left, self.conn.behind = _EVENTS, False
        begun = time.thread_time()
        super().handle_events()
        spent = time.thread_time() - begun
        self._spent += spent
        long = self._spent > _AT_ONCE_S and self.conn.their_state is not h11.DONE
        if self._spent > _MOST_S and self._came < self._spent * _LEAST_BYTES:
            self._abort("sends its request in too small pieces")
        elif (long or self.conn.behind) and not self.transport.is_closing():
            self.flow.rest()
            share = _SHARE if len(self.tasks) > 1 else _SHARE_ALONE
            pause_s = _turns.wait_s(self.loop.time(), spent + _READ_S, share) if long else 0.0
            self._resting = self.loop.call_later(pause_s, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        if self.transport.is_closing():
            return
        self.flow.go_on()
        if self.conn.behind:
            self.handle_events()

    def end(self) -> None:
        """Close the connection, as uvicorn asks for; first let the client read its answer if more
        of the request may come, since the system drops what was sent where unread input is left."""
        coming = self.conn.refusal is not None or self._unfinished
        if self.lingers or not coming or self._own.is_closing():
            self._own.close()
            return
        try:
            self._own.write_eof()
        except OSError:  # the client has gone, which the transport has not seen yet
            self._own.close()
            return
        self.lingers = True
        self._own.resume_reading()
        self._lingering = self.loop.call_later(LINGER_S, self._own.close)

    def _throw_away(self, count: int) -> None:
        self._thrown_away += count
        if self._thrown_away > MOST_BODY_BYTES:
            self._own.close()
            return
        self._own.pause_reading()
        if self._resting is not None:
            self._resting.cancel()
        self._resting = self.loop.call_later(_LINGER_PAUSE_S, self._own.resume_reading)

    def on_response_complete(self) -> None:
        """Reset the counts of the request: its answer has been sent."""
        self._since, self._spent, self._came = self.loop.time(), 0.0, 0
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
        """Refuse what is no HTTP, or has too large a head."""
        refusal = self.conn.refusal or HttpError(400, "invalid_http", msg)
        logger.info("%s: %s", self._name, refusal)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = error_response(refusal)
            lines = [(b"HTTP/1.1 %d" % refusal.status, STATUS_PHRASES[refusal.status])]
            head = b"\r\n".join(b"%s: %s" % line for line in (*answer.raw_headers, CLOSE_HEADER))
            self.transport.write(b" ".join(lines[0]) + b"\r\n" + head + b"\r\n\r\n" + answer.body)
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.disconnected = True  # it has its answer
                self.cycle.message_event.set()
        self.transport.close()

    @property
    def _silent(self) -> bool:
        """Whether it is between requests."""
        ended = self.cycle is None or self.cycle.response_complete
        return ended and not self.transport.is_closing()

    @property
    def _unfinished(self) -> bool:
        """Whether more of its request is to come."""
        return self.conn.their_state is h11.SEND_BODY

    @property
    def _name(self) -> str:
        return "{}:{}".format(*self.client) if self.client else "a client"

    def _look(self) -> None:
        cycle, left = self.cycle, self._own.get_write_buffer_size()
        if self.transport.is_closing() and left == self._left:
            self._abort("does not read its answer")
        elif self._silent and cycle is self._before:
            logger.info("%s: no request came in time", self._name)
            self.transport.close()
        self._before, self._left = cycle, left
        self._waiting = self.loop.call_later(HEAD_S, self._look)

    def _abort(self, why: str) -> None:
        logger.info("%s: %s", self._name, why)
        self._own.abort()
