"""Finding and getting models through the screen, from a hub on 127.0.0.1."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Button, Input, ProgressBar, Static

from app.models.pulling import PullState
from app.tui.app import IngotApp
from app.tui.screens.find import Download, FindScreen
from app.tui.screens.models import ModelsScreen
from app.tui.widgets.repo_view import BuildTable, RepoTable, RepoView
from tests.app.tui.chat_app import out_of_models
from tests.app.tui.conftest import ask, cells_of, is_ready
from tests.quantize.hub.fakehub import FakeHub
from tests.support import wait_until

REPO = "org/tiny-GGUF"
EIGHT = b"GGUF eight" * 20_000
FILES = {"tiny-Q4_K_M.gguf": b"GGUF four" * 9000, "tiny-Q8_0.gguf": EIGHT}
GB = 10**9


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with some repositories."""
    served = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 60)
    monkeypatch.setattr("app.tui.widgets.repo_view.bandwidth", lambda: 60e9)
    for module in ("screens.find", "widgets.repo_view"):
        monkeypatch.setattr(f"app.tui.{module}.memory_now", lambda: (16 * GB, 8 * GB))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    known = {"total": 200_000, "architecture": "llama", "context_length": 2048}
    served.add(REPO, FILES, downloads=900, gguf=known, tags=["conversational", "license:mit"])
    served.add("org/huge-70B-GGUF", {"huge.gguf": b"GGUF" * 50}, downloads=500)
    served.add("org/base-GGUF", {"base-Q8_0.gguf": b"GGUF" * 50}, downloads=400, tags=[])
    served.add("org/graph", {"model.onnx": b"o", "genai_config.json": b"{}"}, downloads=300)
    served.add("org/original", {"model.safetensors": b"x" * 90}, downloads=200)
    yield served
    served.close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[FakeHub]:
    with served(monkeypatch) as hub:
        yield hub


def text(screen: FindScreen, id: str) -> str:
    return str(screen.query_one(f"#{id}", Static).content)


def names(screen: FindScreen) -> list[str]:
    return [found.repo for found in screen.query_one(RepoTable).rows]


def builds(screen: FindScreen) -> list[list[str]]:
    table = screen.query_one(BuildTable)
    return [[cell.strip() for cell in cells_of(table, build)] for build in table.rows]


def title(screen: FindScreen, id: str) -> str:
    return str(screen.query_one(f"#{id}").border_title)


async def opened(pilot: Any, words: str = "", count: int = 1) -> FindScreen:
    screen = FindScreen(words)
    pilot.app.show(screen)
    await wait_until(lambda: screen.query(RepoTable) and screen.query(RepoView))
    await wait_until(lambda: len(names(screen)) == count)
    await pilot.pause()
    return screen


async def test_first_there_are_models_to_chat_with_that_fit(bare, hub: FakeHub):
    async with bare.run_test(size=(120, 40)) as pilot:
        screen = await opened(pilot)
        assert title(screen, "results") == "Instruct models that fit in 8.0 GB, by downloads"
        await wait_until(lambda: text(screen, "advice").startswith("★ Q8_0: "))
        assert "200k parameters · llama · 2.0k context · mit" in text(screen, "facts")
        assert builds(screen)[0] == ["Q4_K_M", "81 kB", "3.2", "fits", ""]
        assert builds(screen)[1] == ["★ Q8_0", "200 kB", "8.0", "fits", ""]
        await pilot.press("alt+t")
        await wait_until(lambda: names(screen) == [REPO, "org/huge-70B-GGUF"])
        screen.query_one("#instruct").focus()
        await pilot.press("space")
        await wait_until(lambda: names(screen)[-1:] == ["org/base-GGUF"])
        await pilot.press("alt+s")
        await wait_until(lambda: title(screen, "results") == "Models, by likes")


async def test_typing_searches_and_the_whole_way_to_a_chat_by_key(bare, hub: FakeHub):
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot)
        await pilot.press("alt+t", *"org")
        await wait_until(lambda: any(one.asked.get("search") == ["org"] for one in hub.requests))
        await wait_until(lambda: len(names(screen)) == 2)
        await pilot.press("down")
        await wait_until(lambda: title(screen, "one") == "org/huge-70B-GGUF")
        await pilot.press("up")
        await wait_until(lambda: len(builds(screen)) == 2)
        await wait_until(lambda: text(screen, "advice"))
        await pilot.press("enter", "home", "enter")
        await wait_until(lambda: screen.query_one(Download).pulled == f"{REPO}:Q4_K_M")
        await wait_until(lambda: builds(screen) and builds(screen)[0][-1] == "✓")
        assert screen.focused is screen.query_one("#act")
        await pilot.press("enter")
        await wait_until(lambda: bare.ended_with is not None)
    assert bare.ended_with == f"{REPO}:Q4_K_M"
    assert not hub.sent("Q8_0.gguf") or max(hub.sent("Q8_0.gguf")) <= 128 * 2**10


async def test_enter_does_not_get_to_the_builds_of_the_search_before(bare, hub: FakeHub):
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot)
        await wait_until(lambda: text(screen, "advice"))
        line = screen.query_one("#words")
        line.value = "huge"
        screen._entered()  # before anything of the new search has come
        assert not builds(screen)
        assert screen.focused is line
        await wait_until(lambda: not names(screen) or names(screen) == ["org/huge-70B-GGUF"])
        assert not [row for row in builds(screen) if row[0] == "Q4_K_M"]


async def test_stopped_and_gone_on_with(bare, hub: FakeHub):
    fault = hub.fault(r"^/org/tiny-GGUF/tiny-Q8_0\.gguf$", stall_after=60_000)
    fault.times = 0
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, f"{REPO}:Q8_0")
        await wait_until(lambda: text(screen, "advice"))
        fault.times = 1_000
        await pilot.press("enter", "enter")
        await wait_until(lambda: "60 kB of 200 kB" in text(screen, "progress"))
        assert screen.query_one(ProgressBar).percentage == pytest.approx(0.3)
        await pilot.press("escape")
        await wait_until(lambda: "What has arrived stays" in text(screen, "progress"))
        assert bare.screen is screen
        await wait_until(lambda: [row[-1] for row in builds(screen) if row[-1]] == ["30%"])
        fault.times = 0
        fault.given_up.set()
        await pilot.click("#act")
        await wait_until(lambda: screen.query_one(Download).pulled)
    stored = [one.sent for one in hub.requests if one.storage and "range" in one.headers]
    assert len(EIGHT) - 60_000 in stored


async def test_what_is_too_big_is_downloaded_only_after_asking(
    bare, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
):
    async with bare.run_test(size=(120, 40)) as pilot:
        screen = await opened(pilot)
        await wait_until(lambda: builds(screen))
        # Of the search's filters it is no matter here.
        monkeypatch.setattr("app.tui.widgets.repo_view.memory_now", lambda: (16 * GB, 1000))
        screen.query_one(RepoView).refresh_builds()
        await wait_until(lambda: "Nothing of it fits" in text(screen, "advice"))
        assert {row[3] for row in builds(screen)} == {"too big"}
        for answer in ("n", "y"):
            screen.query_one(BuildTable).focus()
            await pilot.press("enter")
            await wait_until(lambda: bare.screen is not screen)
            await pilot.press(answer)
            await wait_until(lambda: bare.screen is screen)
        await wait_until(lambda: screen.query_one(Download).pulled)


@pytest.mark.parametrize(
    ("name", "fault", "where", "told"),
    [
        ("org/nothing", None, "wrong", "There is no model org/nothing on the hub, or it is"),
        ("nothing-of-this", None, "said", "The filters leave others out: GGUF, Instruct, Fits"),
        ("", {"status": 429, "headers": {"Retry-After": "300"}}, "wrong", "try again in 300 s"),
    ],
)
async def test_what_cannot_be_found(bare, hub: FakeHub, name: str, fault, where: str, told: str):
    if fault:
        hub.fault("^/api/models$", **fault)
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, name, 0)
        await wait_until(lambda: told in text(screen, where))
        await pilot.press("escape")
        await wait_until(lambda: bare.screen is not screen)
    assert bare.ended_with is None


async def test_a_gated_one_says_so_and_without_a_network_there_is_what_is_on_disk(
    bare, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
):
    hub.gated.add(REPO)
    async with bare.run_test(size=(120, 40)) as pilot:
        screen = await opened(pilot, f"{REPO}:Q4_K_M")
        await wait_until(lambda: text(screen, "advice"))
        assert "gated" in text(screen, "facts")
        await pilot.press("enter", "enter")
        await wait_until(lambda: "is gated: accept its conditions" in text(screen, "progress"))
        assert str(screen.query_one("#act", Button).label) == "Go on"
        hub.gated.clear()
        await pilot.pause()  # the button lies where it is drawn
        await pilot.click("#act")
        await wait_until(lambda: screen.query_one(Download).pulled)
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        screen.query_one(Input).value = "anything"
        await wait_until(lambda: "There is no connection to the hub" in text(screen, "wrong"))
        assert f"{REPO} · Q4_K_M  81 kB" in text(screen, "said")


async def use_real(pilot: Any, label: str, *words: str) -> None:
    """Download the model of ``real``, and do what is offered."""
    await wait_until(lambda: isinstance(pilot.app.screen, FindScreen))
    await pilot.pause()
    screen = pilot.app.screen
    await pilot.press(*words)
    await wait_until(lambda: names(screen) == ["org/real-GGUF"])
    await wait_until(lambda: text(screen, "advice"))
    await pilot.press("enter", "enter")
    await wait_until(lambda: screen.query_one(Download).pulled)
    await pilot.pause()
    assert str(screen.query_one("#act", Button).label) == label
    await pilot.press("enter")


@pytest.fixture
def real(hub: FakeHub, gguf_file: Path) -> None:
    hub.add("org/real-GGUF", {"real-Q8_0.gguf": gguf_file.read_bytes()}, downloads=1)


@pytest.mark.usefixtures("real")
async def test_from_the_list_of_models_and_back_with_one(bare):
    async with bare.run_test(size=(120, 40)) as pilot:
        models = ModelsScreen()
        bare.show(models)
        await wait_until(lambda: models.query("#find"))
        await pilot.pause()
        await pilot.click("#find")
        await use_real(pilot, "Use it", *"real")
        await wait_until(lambda: bare.ended_with)
    assert [entry.model for entry in bare.ended_with] == ["org/real-GGUF:Q8_0"]


@pytest.mark.usefixtures("real")
async def test_from_the_chat_and_chat_now(app: IngotApp):
    host = app.services.host
    async with app.run_test(size=(120, 40)) as pilot:
        await out_of_models(pilot)
        await ask(pilot, "/find org/real-GGUF")
        await use_real(pilot, "Chat now")
        await wait_until(lambda: "real-Q8_0.gguf" in str(host.choice and host.choice.file.path))
        await wait_until(lambda: is_ready(app))


async def test_more_results_when_the_cursor_comes_near_the_end(bare, hub: FakeHub):
    for number in range(45):
        hub.add(f"many/model-{number}", {"a.gguf": b"GGUF"}, downloads=100 - number)
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, "many", 40)
        assert str(screen.query_one("#results").border_subtitle) == "40 and more"
        await pilot.press("ctrl+end")
        await wait_until(lambda: len(names(screen)) == 45)
        assert str(screen.query_one("#results").border_subtitle) == "45"


def test_picture(bare, hub: FakeHub, snap):
    async def open_it(pilot: Any) -> None:
        screen = await opened(pilot)
        await wait_until(lambda: text(screen, "advice"))
        await pilot.press("enter")
        download = screen.query_one(Download)
        download.display = True
        download.border_title = f"Download {REPO}:Q8_0"
        download.show(PullState("pulling", 1_200_000_000, 4_700_000_000, 25e6, 140.0))

    assert snap(bare, terminal_size=(120, 40), run_before=open_it)
