"""What a repository on the hub holds, what of it fits, and which build to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.models.hub import MARGIN, Contents, Need, RemoteBuild, Verdict, advise, contents
from app.models.library import Kept
from app.models.pulling import parse_request, pull
from quantize.hub.client import HubName, NotOnHubError
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings
from tests.quantize.hub.fakehub import FakeHub
from tests.quantize.hub.hubs import AT_ONCE, Notes

REPO = HubName("org/tiny-GGUF")
GB = 10**9


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gguf_file: Path) -> Iterator[FakeHub]:
    served = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    eight = gguf_file.read_bytes()
    served.add(
        REPO.repo,
        {
            "tiny-Q8_0.gguf": eight,
            "tiny-BF16-00001-of-00002.gguf": eight,
            "tiny-BF16-00002-of-00002.gguf": eight[:90],
            "mmproj-tiny-F16.gguf": b"an image encoder" * 5,
            "cpu/int4/genai_config.json": b"{}",
            "cpu/int4/model.onnx": b"onnx" * 50,
            "cpu/int4/model.onnx.data": b"data" * 5000,
            "model.safetensors": b"weights" * 100,
        },
    )
    yield served
    served.close()


def by_label(found: Contents) -> dict[str, RemoteBuild]:
    return {build.kept.label: build for build in found.builds}


def test_builds_projectors_and_originals(hub: FakeHub, gguf_file: Path):
    found = contents(REPO, AT_ONCE)
    builds = by_label(found)
    assert sorted(builds) == ["BF16", "Q8_0", "cpu/int4"]
    assert len(builds["BF16"].kept.bytes) == 2
    assert builds["BF16"].kept.size == gguf_file.stat().st_size + 90
    assert sorted(builds["cpu/int4"].kept.bytes) == [
        "cpu/int4/genai_config.json",
        "cpu/int4/model.onnx",
        "cpu/int4/model.onnx.data",
    ]
    assert [one.path for one in found.projectors] == ["mmproj-tiny-F16.gguf"]
    assert found.originals == 700
    assert len(builds["Q8_0"].kept.sha256["tiny-Q8_0.gguf"]) == 64


def test_a_builds_memory_is_what_the_file_itself_would_need(hub: FakeHub, gguf_file: Path):
    found = contents(REPO, AT_ONCE)
    build, file = by_label(found)["Q8_0"], read_model(gguf_file)
    whole = estimate(file, RunnerSettings(slots=1)).total
    assert build.need.by_header
    # Its merges may be beyond what was read of it.
    assert whole <= build.need.bytes <= whole + 125 * file.vocab_size
    assert build.need.context == min(4096, file.context_length)
    assert sum(hub.sent("tiny-Q8_0.gguf")) <= 128 * 2**10
    onnx = by_label(found)["cpu/int4"]
    assert not onnx.need.by_header
    assert onnx.need.bytes == int(onnx.kept.size * (1 + MARGIN))


def test_what_is_here_and_what_has_arrived(hub: FakeHub):
    pull(parse_request("org/tiny-GGUF:Q8_0"), Notes(), AT_ONCE)
    builds = by_label(contents(REPO, AT_ONCE))
    assert [build.here for build in (builds["Q8_0"], builds["BF16"])] == [True, False]


def test_a_gated_repository_is_listed_all_the_same(hub: FakeHub):
    hub.gated.add(REPO.repo)
    found = contents(REPO, AT_ONCE)
    assert found.file is None
    assert not any(build.need.by_header for build in found.builds)


@pytest.mark.parametrize("start", [b"GGUF", b"junk" * 100, b"GGUF\3\0\0\0" + b"\xff" * 200])
def test_a_damaged_header_leaves_the_sizes(hub: FakeHub, start: bytes):
    hub.add(REPO.repo, {"tiny-Q8_0.gguf": start + b"x" * 100})
    (build,) = contents(REPO, AT_ONCE).builds
    assert not build.need.by_header


def test_originals_alone_and_nothing_at_all(hub: FakeHub):
    hub.add("org/original", {"model.safetensors": b"x" * 90})
    found = contents(HubName("org/original"), AT_ONCE)
    assert (found.builds, found.originals) == ((), 90)
    with pytest.raises(NotOnHubError):
        contents(HubName("org/nothing"), AT_ONCE)


# Which one to take: sizes and needs as a repository of a model of 1 or 8 billion weights has them


def made(sizes: dict[str, float], **more: bool) -> Contents:
    builds = [
        RemoteBuild(
            Kept(label, "gguf", label, "c", {label: int(size * GB)}, {}),
            Need(int(size * GB * 1.2), 4096, by_header=True),
            arrived=0,
            here=False,
        )
        for label, size in sizes.items()
    ]
    return replace(Contents("org/x", tuple(builds), (), 0, None), **more)


EIGHT_B = made({"Q2_K": 3.2, "Q4_K_M": 4.9, "Q6_K": 6.6, "Q8_0": 8.5, "F16": 16.0})


@pytest.mark.parametrize(
    ("free", "bandwidth", "label"),
    [
        (64, 500, "Q8_0"),  # F16 fits as well and is no better
        (10, 500, "Q6_K"),  # with room
        (64, 60, "Q4_K_M"),  # 60 GB/s: Q6_K would give 9 tokens a second
        (64, 20, "Q4_K_M"),  # slow whatever is taken: not below 4 bits
        (4, 60, "Q2_K"),  # tight
        (64, None, "Q8_0"),
    ],
)
def test_the_recommended_build(free: float, bandwidth: float | None, label: str):
    found = advise(EIGHT_B, 8 * GB, int(free * GB), None if bandwidth is None else bandwidth * GB)
    assert found is not None
    assert found.build.kept.label == label
    assert found.why.startswith(f"{label}: ")
    assert ("tok/s" in found.why) == (bandwidth is not None)


def test_a_mixture_is_not_bound_by_its_size(hub: FakeHub):
    found = advise(replace(EIGHT_B, mixture=True), 8 * GB, 64 * GB, 20.0 * GB)
    assert found is not None
    assert found.build.kept.label == "Q8_0"
    assert "tok/s" not in found.why


def test_nothing_fits():
    assert advise(EIGHT_B, 8 * GB, GB, 60.0 * GB) is None


def test_verdicts():
    need = Need(8 * GB, 4096, by_header=True)
    said = [need.verdict(free * GB) for free in (7, 9, 11)]
    assert said == [Verdict.TOO_BIG, Verdict.TIGHT, Verdict.FITS]
