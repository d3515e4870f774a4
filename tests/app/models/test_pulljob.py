"""Downloads as a screen sees them, against a hub on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.models import library
from app.models.hub import contents
from app.models.pulling import PullJob, PullState, parse_request
from quantize.hub.client import Hub, HubName, Patience
from tests.quantize.hub.fakehub import FakeHub
from tests.support import until

QUICK = Hub(Patience(read_s=60.0, attempts=2, pause_s=0.05, wait_s=1.0))
TINY = HubName("org/tiny-GGUF")
EIGHT = b"GGUF eight" * 20_000
FILES = {
    "tiny-Q4_K_M.gguf": b"GGUF four" * 9000,
    "tiny-Q8_0.gguf": EIGHT,
    "cpu/int4/genai_config.json": b"{}",
    "cpu/int4/model.onnx": b"onnx" * 50,
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[FakeHub]:
    served = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    served.add("org/tiny-GGUF", FILES)
    yield served
    served.close()


def job(text: str) -> PullJob:
    made = PullJob(parse_request(text), QUICK)
    made.start()
    return made


def ended(made: PullJob) -> PullState:
    return until(made.poll, lambda state: state.ended)


def test_a_download_tells_its_bytes(hub: FakeHub):
    state = ended(job("org/tiny-GGUF:Q8_0"))
    assert (state.done, state.total, state.error) == (len(EIGHT), len(EIGHT), None)
    assert state.path is not None
    assert state.path.read_bytes() == EIGHT
    assert [b.kept.label for b in contents(TINY, QUICK).builds if b.here] == ["Q8_0"]


def test_cancel_keeps_what_has_arrived_and_the_next_one_goes_on(hub: FakeHub):
    fault = hub.fault(r"^/org/tiny-GGUF/tiny-Q8_0\.gguf$", stall_after=60_000)
    first = job("org/tiny-GGUF:Q8_0")
    state = until(first.poll, lambda state: state.done >= 60_000)
    assert state.total == len(EIGHT)
    first.cancel()
    assert first.poll().cancelled  # at once, though the connection hangs
    assert first.poll().ended
    fault.given_up.set()
    first._thread.join(60)  # when the stalled connection has ended; it asks no second time
    assert not first._thread.is_alive()
    assert len([r for r in hub.requests if r.storage and r.path.endswith("Q8_0.gguf")]) == 1
    fault.times = 0
    assert {b.kept.label: b.arrived for b in contents(TINY, QUICK).builds}["Q8_0"] == 60_000
    assert library.find("tiny-GGUF") is None
    state = ended(job("org/tiny-GGUF:Q8_0"))
    assert state.path is not None
    assert state.path.read_bytes() == EIGHT
    assert [n for n in hub.sent("Q8_0.gguf") if n] == [60_000, len(EIGHT) - 60_000]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("org/nothing", "there is no model org/nothing on the hub, or it is private"),
        ("org/tiny-GGUF:Q5_K_M", "has no 'Q5_K_M'"),
        ("org/original", "`quantize org/original` builds them"),
        ("org/gated:Q8_0", "is gated: accept its conditions"),
    ],
)
def test_errors_are_told_plainly(hub: FakeHub, text: str, told: str):
    hub.add("org/original", {"config.json": b"{}", "model.safetensors": b"x" * 90})
    hub.add("org/gated", FILES)
    hub.gated.add("org/gated")
    state = ended(job(text))
    assert state.error is not None
    assert told in state.error


def test_no_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    hub.close()
    state = ended(job("org/tiny-GGUF"))
    assert "there is no connection to the hub" in str(state.error)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "there is no connection to the hub" in str(ended(job("org/tiny-GGUF:Q8_0")).error)
