"""Streams whose readers come and go while an engine's thread writes."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from runtimes.request import Chunk, Completion, FinishReason, Timings, Usage
from runtimes.stream import Stream


def piece(number: int) -> Chunk:
    return Chunk(f"{number} ", (number,))


def ended() -> Completion:
    timings = Timings(0, 0, 0, 0, 0, 1, 1)
    return Completion("one", "", (), FinishReason.STOP, Usage(1, 1), timings)


@pytest.mark.parametrize("write", [Stream.put, Stream.finish])
def test_a_reader_may_leave_at_any_moment(write):
    """Before each instruction of the writer in turn, as a switch of threads there would have it."""
    moments = 0
    while leave_at(moments, write) > moments:
        moments += 1
    assert moments > 10


def leave_at(moment: int, write: Any) -> int:
    """Let a reader leave before an instruction of ``write``; returns how many there were."""
    stream, loop, seen = Stream("one", lambda _: None), asyncio.new_event_loop(), 0
    stream.put(piece(0))
    chunks = stream.__aiter__()
    loop.run_until_complete(anext(chunks))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code is not write.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if seen == moment:
                loop.run_until_complete(chunks.aclose())
            seen += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        write(stream, piece(1) if write is Stream.put else ended())
    finally:
        sys.settrace(before)
    loop.run_until_complete(chunks.aclose())
    loop.close()
    return seen


def test_a_reader_that_left_takes_no_others_chunks_away():
    """``break`` leaves the first iteration to be closed later, while the second already waits."""
    stream = Stream("one", lambda _: None)

    async def read() -> str:
        stream.put(piece(0))
        first = stream.__aiter__()
        assert (await anext(first)).text == "0 "
        second = stream.__aiter__()
        waiting = asyncio.ensure_future(anext(second))
        await asyncio.sleep(0)  # until it waits
        await first.aclose()
        threading.Thread(target=stream.put, args=(piece(1),)).start()
        chunk = await asyncio.wait_for(waiting, 20)
        await second.aclose()
        return chunk.text

    assert asyncio.run(read()) == "1 "


class ClosingLoop(asyncio.SelectorEventLoop):
    """Is closed by its owner just when another thread calls it."""

    def call_soon_threadsafe(self, *args, **kwargs):
        self.close()
        return super().call_soon_threadsafe(*args, **kwargs)


def test_a_loop_may_be_closed_while_the_engine_writes(caplog):
    stream = Stream("one", lambda _: None)
    chunks, loop = stream.__aiter__(), ClosingLoop()

    async def wait() -> None:
        anext(chunks).send(None)
        stream.__await__().send(None)

    loop.run_until_complete(wait())
    stream.put(piece(0))
    assert loop.is_closed()
    stream.finish(ended())
    assert stream.done
    assert caplog.records == []


class CountingLoop(asyncio.SelectorEventLoop):
    """Knows how often another thread's call has woken it."""

    woken = 0

    def call_soon_threadsafe(self, *args, **kwargs):
        self.woken += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def test_the_rows_of_a_step_wake_the_loop_once():
    streams = [Stream(str(number), lambda _: None) for number in range(16)]

    async def text(stream: Stream) -> str:
        return "".join([chunk.text async for chunk in stream]) + (await stream).id

    async def read(loop: CountingLoop) -> None:
        reading = [asyncio.ensure_future(text(stream)) for stream in streams]
        for step in range(3):
            await asyncio.sleep(0)  # until they wait
            before = loop.woken
            for stream in streams:
                stream.put(piece(step))
            assert loop.woken == before + 1
            await asyncio.sleep(0)  # until it has been woken
        for stream in streams:
            stream.finish(ended())
        assert await asyncio.gather(*reading) == ["0 1 2 one"] * 16

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(read(runner.get_loop()))


def test_what_is_over_is_not_cancelled():
    cancelled: list[str] = []
    over, running = Stream("over", cancelled.append), Stream("running", cancelled.append)
    over.finish(ended())
    over.cancel()
    running.cancel()
    assert cancelled == ["running"]
