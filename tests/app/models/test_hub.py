"""Searches, what a repository holds and what of it fits, against a hub on 127.0.0.1; which build to
take."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from app.models.hub import (
    MARGIN,
    Contents,
    Need,
    Query,
    RemoteBuild,
    advise,
    contents,
    look_up,
    search,
)
from app.models.library import Kept
from app.models.pulling import parse_request, pull
from quantize.hub.client import HubError, HubName, NotOnHubError, OfflineError
from runtimes.llamacpp.backend import BACKEND as LLAMACPP
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings
from tests.quantize.hub.fakehub import FakeHub
from tests.quantize.hub.hubs import AT_ONCE, PATIENT, Notes

APPLE, SEVEN, PEAR, BASE = "one/Apple-1B-GGUF", "two/apple-7b", "two/Pear-Q4", "two/base-8x7B"
ONNX, ORIGINAL = "six/Apple-ONNX", "six/Apple"
REPO = HubName("org/tiny-GGUF")
GB = 10**9


@pytest.fixture
def hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setattr("app.models.hub.quick", lambda: AT_ONCE)
    files = {"a.gguf": b"GGUF"}
    told = {"total": 1_200_000_000, "architecture": "llama", "context_length": 8192}
    hub.add(APPLE, files, downloads=900, likes=3, gguf=told)
    hub.add(SEVEN, files, downloads=400, likes=8)
    hub.add(PEAR, files, downloads=700, lastModified="2026-10-02T10:00:00.000Z")
    hub.add(BASE, files, downloads=800, tags=["license:mit"])
    hub.add(ONNX, {"model.onnx": b"onnx"}, downloads=500)
    hub.add(ORIGINAL, {"model.safetensors": b"x"}, downloads=9000)
    return hub


def first(query: Query) -> Any:
    return next(search(query))


def test_words_formats_sizes_and_orders(hub: FakeHub) -> None:
    for query, found in (
        (Query(), [APPLE, PEAR, SEVEN]),
        (Query("apple"), [APPLE, SEVEN]),
        (Query("apple", ("gguf", "onnx")), [APPLE, ONNX, SEVEN]),
        (Query("apple", ()), [ORIGINAL, APPLE, ONNX, SEVEN]),
        (Query(sort="likes"), [SEVEN, APPLE, PEAR]),
        (Query(sort="updated"), [PEAR, APPLE, SEVEN]),
        (Query(instruct=False), [APPLE, BASE, PEAR, SEVEN]),
        (Query(largest=10**9), [APPLE, PEAR]),  # whose size nobody knows
    ):
        assert [one.repo for one in search(query)] == found, query


def test_what_is_told_of_a_repository(hub: FakeHub) -> None:
    hub.gated.add(APPLE)
    apple = first(Query("apple"))
    assert (apple.parameters, apple.exact, apple.gated) == (1_200_000_000, True, True)
    assert (apple.architecture, apple.context) == ("llama", 8192)
    assert look_up(HubName(APPLE)) == apple
    base = first(Query("base", instruct=False))
    assert (base.parameters, base.exact, base.licence) == (56_000_000_000, False, "mit")
    pear = first(Query("pear"))
    assert (pear.parameters, pear.updated.year) == (None, 2026)
    hub.add("odd/x-2B", {"a.gguf": b""}, gguf={"total": "many", "context_length": -1})
    odd = first(Query("odd"))  # absurd figures are not taken over
    assert (odd.parameters, odd.exact, odd.context) == (2_000_000_000, False, None)


def test_pages_are_asked_for_when_they_are_needed_and_of_our_hub(hub: FakeHub) -> None:
    hub.page = 2
    for number in range(7):
        hub.add(f"org/many-{number}", {"a.gguf": b"GGUF"}, downloads=100 - number)
    found = search(Query("many"))
    assert [one.repo[-1] for one in islice(found, 2)] == ["0", "1"]
    assert len(hub.requests) == 1
    assert [one.repo[-1] for one in found] == list("23456")
    # The links named another host; what they ask stays the same.
    assert len(hub.requests) == 4
    asked = [(one.asked["search"], one.asked["filter"]) for one in hub.requests]
    assert asked == [(["many"], ["gguf", "conversational"])] * 4


_NO_LISTS = (
    b"<html>Log in",
    b'[{"likes": 3}]',
    b"[7]",
    b'[{"id": 7, "gguf": {"total": 9}}]',
)


def test_trouble(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    no_list = "is not a list of models"
    for told, what in (
        ("limits how often you may ask (429); try again in 120 s",
         {"status": 429, "headers": {"Retry-After": "120"}}),
        ("does not answer the search (HTTP 503); try again later", {"status": 503}),
        ("(HTTP 400, bad sort)", {"status": 400, "headers": {"X-Error-Message": "bad sort"}}),
        *((no_list, {"page": page}) for page in _NO_LISTS),
    ):  # fmt: skip
        fault = hub.fault("^/api/models$", **what)
        with pytest.raises(HubError) as error:
            first(Query())
        assert told in str(error.value)
        fault.times = 0
    fault = hub.fault("^/api/models$", status=502, times=2)  # which passes
    with monkeypatch.context() as patch:
        patch.setattr("app.models.hub.quick", lambda: PATIENT)
        assert first(Query()).repo == APPLE
    assert fault.times == 0
    with pytest.raises(NotOnHubError, match="there is no model one/nothing"):
        look_up(HubName("one/nothing"))
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(HubError, match="does not accept the token"):
        first(Query())
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(OfflineError, match="HF_HUB_OFFLINE forbids to ask the hub"):
            first(Query())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OfflineError, match="there is no connection to the hub"):
        first(Query())


def test_the_builds_of_a_repository(hub: FakeHub) -> None:
    eight, folder = LLAMACPP.selftest.read_bytes(), "cpu/int4"
    onnx = {f"{folder}/genai_config.json": b"{}", f"{folder}/model.onnx": b"onnx" * 50}
    onnx[f"{folder}/model.onnx.data"] = b"data" * 5000
    parts = ("tiny-BF16-00001-of-00002.gguf", "tiny-BF16-00002-of-00002.gguf")
    files = {"tiny-Q8_0.gguf": eight, parts[0]: eight, parts[1]: eight[:90], **onnx}
    files |= {"mmproj-tiny-F16.gguf": b"mm" * 40, "model.safetensors": b"weights" * 100}
    hub.add(REPO.repo, files)
    found = contents(REPO)
    builds = {build.kept.label: build for build in found.builds}
    assert {label: {*one.kept.bytes} for label, one in builds.items()} == {
        "BF16": {*parts}, "Q8_0": {"tiny-Q8_0.gguf"}, folder: {*onnx}
    }  # fmt: skip
    assert builds["BF16"].kept.size == len(eight) + 90
    assert len(builds["Q8_0"].kept.sha256["tiny-Q8_0.gguf"]) == 64
    assert ([one.path for one in found.projectors], found.originals) == (
        ["mmproj-tiny-F16.gguf"], 700
    )  # fmt: skip
    # A build's memory is what the file itself would need; its merges may be beyond what was read.
    need, file = builds["Q8_0"].need, read_model(LLAMACPP.selftest)
    whole = estimate(file, RunnerSettings(slots=1)).total
    assert whole <= need.bytes <= whole + 125 * file.vocab_size
    assert (need.by_header, need.context) == (True, min(4096, file.context_length))
    assert sum(hub.sent("tiny-Q8_0.gguf")) <= 128 * 2**10
    size = builds[folder].kept.size
    assert builds[folder].need == Need(int(size * (1 + MARGIN)), 4096, by_header=False)
    pull(parse_request(f"{REPO.repo}:Q8_0"), Notes(), AT_ONCE)
    assert [one.kept.label for one in contents(REPO).builds if one.here] == ["Q8_0"]


# Which one to take: sizes and needs as a repository of a model of 8 billion weights has them


def made(sizes: dict[str, float]) -> Contents:
    builds = [
        RemoteBuild(
            Kept(label, "gguf", label, "c", {label: int(size * GB)}, {}),
            Need(int(size * GB * 1.2), 4096, by_header=True),
            arrived=0,
            here=False,
        )
        for label, size in sizes.items()
    ]
    return Contents("org/x", tuple(builds), (), 0)


@pytest.mark.parametrize(
    ("free", "bandwidth", "label"),
    [
        (64, 500, "Q8_0"),  # F16 fits as well and is no better
        (10, 500, "Q6_K"),  # with room
        (64, 60, "Q4_K_M"),  # 60 GB/s: Q6_K would give 9 tokens a second
        (64, 20, "Q4_K_M"),  # slow whatever is taken: not below 4 bits
        (4, 60, "Q2_K"),  # tight
        (64, None, "Q8_0"),
        (1, 60, None),
    ],
)
def test_the_recommended_build(free: int, bandwidth: int | None, label: str | None) -> None:
    eight = made({"Q2_K": 3.2, "Q4_K_M": 4.9, "Q6_K": 6.6, "Q8_0": 8.5, "F16": 16.0})
    speed = None if bandwidth is None else float(bandwidth * GB)
    found = advise(eight, 8 * GB, free * GB, speed)
    if label is None:
        assert found is None
        return
    assert found is not None
    build, why = found
    assert build.kept.label == label
    assert why.startswith(f"{label}: ")
    assert ("tok/s" in why) == (bandwidth is not None)
    mixture = advise(replace(eight, mixture=True), 8 * GB, free * GB, speed)
    assert mixture is not None  # which its size does not bind
    assert "tok/s" not in mixture[1]
    assert (mixture[0].kept.label == "Q8_0") == (free == 64)
