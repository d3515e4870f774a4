"""Getting models through the screen, from a hub on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, OptionList, ProgressBar, Static

from app.models.pulling import Offer, parse_request
from app.models.pulljob import PullState
from app.tui.screens.pull import PullScreen, progress_line
from tests.app.tui.conftest import SIZES
from tests.quantize.hub.fakehub import FakeHub
from tests.support import wait_until

EIGHT = b"GGUF eight" * 20_000
FILES = {"tiny-Q4_K_M.gguf": b"GGUF four" * 9000, "tiny-Q8_0.gguf": EIGHT}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[FakeHub]:
    served = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 60)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    served.add("org/tiny-GGUF", FILES)
    yield served
    served.close()


def said(screen: PullScreen) -> str:
    return str(screen.query_one("#said", Static).content)


def builds(screen: PullScreen) -> list[str]:
    options = screen.query_one("#offers", OptionList)
    return [str(options.get_option_at_index(i).prompt) for i in range(options.option_count)]


async def opened(pilot: Any, name: str = "") -> PullScreen:
    screen = PullScreen(name)
    pilot.app.show(screen)
    await wait_until(lambda: screen.query("#name"))
    await pilot.pause()
    return screen


async def test_a_name_its_builds_and_the_one_that_is_wanted(bare: Any, hub: FakeHub) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot)
        await pilot.press(*"org/tiny-", *"GGUF", "enter")
        await wait_until(lambda: len(builds(screen)) == 2)
        assert builds(screen)[1].split() == ["Q8_0", "200", "kB", "gguf"]
        await pilot.press("down", "enter")
        await wait_until(lambda: bare.ended_with is not None)
    assert bare.ended_with == "org/tiny-GGUF:Q8_0"
    assert not hub.sent("Q4_K_M.gguf")


async def test_stopped_and_gone_on_with(bare: Any, hub: FakeHub) -> None:
    fault = hub.fault(r"^/org/tiny-GGUF/tiny-Q8_0\.gguf$", stall_after=60_000)
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, "org/tiny-GGUF:Q8_0")
        await pilot.press("enter")
        await wait_until(lambda: "60 kB of 200 kB" in said(screen))
        assert screen.query_one(ProgressBar).display
        assert screen.query_one(ProgressBar).percentage == pytest.approx(0.3)
        await pilot.press("escape")
        await wait_until(lambda: "What has arrived stays" in said(screen))
        assert bare.screen is screen
        fault.times = 0
        fault.given_up.set()
        await pilot.press("enter")
        await wait_until(lambda: bare.ended_with is not None)
    assert bare.ended_with == "org/tiny-GGUF:Q8_0"
    assert [n for n in hub.sent("Q8_0.gguf") if n] == [60_000, len(EIGHT) - 60_000]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("org/nothing", "there is no model org/nothing on the hub, or it is private"),
        ("../etc", "is not a name on the hub"),
        ("org/gated:Q8_0", "is gated"),
    ],
)
async def test_errors_are_told_in_the_screen(bare: Any, hub: FakeHub, name: str, told: str) -> None:
    hub.add("org/gated", FILES)
    hub.gated.add("org/gated")
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, name)
        await pilot.press("enter")
        await wait_until(lambda: told in said(screen))
        await pilot.press("escape")
        await wait_until(lambda: bare.screen is not screen)
    assert bare.ended_with is None


async def test_no_network(bare: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, "org/tiny-GGUF")
        await pilot.press("enter")
        await wait_until(lambda: "there is no connection to the hub" in said(screen))
        assert screen.query_one(Input).value == "org/tiny-GGUF"  # to try again


def test_what_is_told_of_a_download() -> None:
    state = PullState("pulling", 1_200_000_000, 4_700_000_000, 25e6, 140.0)
    assert progress_line(state) == "1.2 GB of 4.7 GB · 25 MB/s · 2 min 20 s left"
    nothing = PullState("looking at org/x", 0, None, None, None)
    assert progress_line(nothing) == "looking at org/x ..."


@pytest.mark.parametrize("size", SIZES)
def test_picture(bare: Any, snap: Any, size: tuple[int, int]) -> None:
    async def open_it(pilot: Any) -> None:
        screen = await opened(pilot, "org/tiny-GGUF")
        screen._request = parse_request("org/tiny-GGUF")
        offers = (
            Offer("Q4_K_M", "gguf", "a.gguf", 4_700_000_000, 1_200_000_000, False),
            Offer("Q8_0", "gguf", "b.gguf", 8_500_000_000, 0, True),
        )
        screen.show(PullState("", 0, None, None, None, offers=offers))
        screen.show(PullState("pulling", 1_200_000_000, 4_700_000_000, 25e6, 140.0))

    assert snap(bare, terminal_size=size, run_before=open_it)
