"""Searches, against a hub on 127.0.0.1 and through huggingface_hub."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from app.models.hub import Query, look_up, search
from quantize.hub.client import HubError, HubName, NotOnHubError, OfflineError
from tests.quantize.hub.fakehub import FakeHub
from tests.quantize.hub.hubs import AT_ONCE, HURRIED, PATIENT

GGUF = {"total": 1_200_000_000, "architecture": "llama", "context_length": 8192}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    served = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    files = {"a.gguf": b"GGUF"}
    served.add("one/Apple-1B-GGUF", files, downloads=900, likes=3, gguf=GGUF)
    served.add("two/apple-7b-gguf", files, downloads=400, likes=8)
    served.add("two/Pear-Q4", files, downloads=700, lastModified="2026-10-02T10:00:00.000Z")
    served.add("two/base-8x7B", files, downloads=800, tags=["license:mit"])
    served.add("six/Apple-ONNX", {"model.onnx": b"onnx"}, downloads=500)
    served.add("six/Apple", {"model.safetensors": b"x"}, downloads=9000)
    yield served
    served.close()


def names(query: Query) -> list[str]:
    return [found.repo for found in search(query, AT_ONCE)]


def test_words_formats_and_orders(hub: FakeHub):
    assert names(Query()) == ["one/Apple-1B-GGUF", "two/Pear-Q4", "two/apple-7b-gguf"]
    assert names(Query("apple")) == ["one/Apple-1B-GGUF", "two/apple-7b-gguf"]
    assert names(Query("apple", ("gguf", "onnx"))) == [
        "one/Apple-1B-GGUF",
        "six/Apple-ONNX",
        "two/apple-7b-gguf",
    ]
    assert names(Query("apple", ()))[0] == "six/Apple"
    assert names(Query(sort="likes"))[0] == "two/apple-7b-gguf"
    assert names(Query(sort="updated"))[0] == "two/Pear-Q4"
    assert "two/base-8x7B" in names(Query(instruct=False))


def test_what_is_told_of_a_repository(hub: FakeHub):
    hub.gated.add("one/Apple-1B-GGUF")
    apple = next(search(Query("apple"), AT_ONCE))
    assert (apple.parameters, apple.exact, apple.gated) == (1_200_000_000, True, True)
    assert (apple.architecture, apple.context) == ("llama", 8192)
    (base,) = search(Query("base", instruct=False), AT_ONCE)
    assert (base.parameters, base.exact, base.licence) == (56_000_000_000, False, "mit")
    (pear,) = search(Query("pear"), AT_ONCE)
    assert pear.parameters is None
    assert pear.updated is not None
    assert pear.updated.year == 2026


def test_too_large_ones_are_left_out_and_unknown_ones_stay(hub: FakeHub):
    assert names(Query(largest=10**9)) == ["one/Apple-1B-GGUF", "two/Pear-Q4"]
    assert names(Query(largest=10**8)) == ["two/Pear-Q4"]


def test_pages_are_asked_for_when_they_are_needed_and_of_our_hub(hub: FakeHub):
    hub.page = 2
    for number in range(7):
        hub.add(f"org/many-{number}", {"a.gguf": b"GGUF"}, downloads=100 - number)
    found = search(Query("many"), AT_ONCE)
    assert [one.repo for one in islice(found, 2)] == ["org/many-0", "org/many-1"]
    assert len(hub.requests) == 1
    assert [one.repo[-1] for one in found] == list("23456")
    # The links named another host; what they ask stays the same.
    assert len(hub.requests) == 4
    assert all(one.asked["search"] == ["many"] for one in hub.requests)
    assert all(one.asked["filter"] == ["gguf", "conversational"] for one in hub.requests)


def test_one_by_its_name(hub: FakeHub):
    assert look_up(HubName("one/Apple-1B-GGUF"), AT_ONCE).parameters == 1_200_000_000
    with pytest.raises(NotOnHubError, match="there is no model one/nothing"):
        look_up(HubName("one/nothing"), AT_ONCE)


@pytest.mark.parametrize(
    ("status", "headers", "told"),
    [
        (429, {"Retry-After": "120"}, "limits how often you may ask (429); try again in 120 s"),
        (503, {}, "does not answer the search (HTTP 503); try again later"),
        (400, {"X-Error-Message": "bad sort"}, "(HTTP 400, bad sort)"),
    ],
)
def test_refusals(hub: FakeHub, status: int, headers: dict[str, str], told: str):
    hub.fault("^/api/models$", status=status, headers=headers)
    with pytest.raises(HubError) as error:
        next(search(Query(), AT_ONCE))
    assert told in str(error.value)


def test_a_bad_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(HubError, match="does not accept the token"):
        next(search(Query(), AT_ONCE))


@pytest.mark.parametrize("page", [b"<html>Log in", b'{"error": "no"}', b'[{"likes": 3}]', b"[7]"])
def test_what_is_no_answer_of_a_hub(hub: FakeHub, page: bytes):
    hub.fault("^/api/models$", page=page)
    with pytest.raises(HubError, match="is not a list of models"):
        next(search(Query(), AT_ONCE))


def test_absurd_figures_are_not_taken_over(hub: FakeHub):
    hub.add("odd/x-2B", {"a.gguf": b""}, gguf={"total": "many", "context_length": -1})
    (odd,) = search(Query("odd"), AT_ONCE)
    assert (odd.parameters, odd.exact, odd.context) == (2_000_000_000, False, None)


def test_trouble_that_passes(hub: FakeHub):
    fault = hub.fault("^/api/models$", status=502, times=2)
    assert next(search(Query(), PATIENT)).repo == "one/Apple-1B-GGUF"
    assert fault.times == 0


def test_a_hub_that_stalls(hub: FakeHub):
    fault = hub.fault("^/api/models$", stall_after=10)
    with pytest.raises(OfflineError, match=r"stalled: nothing came for 1\.5 s"):
        next(search(Query(), HURRIED))
    fault.given_up.set()


def test_no_network_and_no_wish_for_it(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError, match="HF_HUB_OFFLINE forbids to ask the hub"):
        next(search(Query(), AT_ONCE))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OfflineError, match="there is no connection to the hub"):
        next(search(Query(), PATIENT))
