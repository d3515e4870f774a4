"""The picker of models: every key of it, on real files and a real library."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, Static

from app.chat.load_settings import LoadSettings, remember, remembered
from app.chat.store.records import Role
from app.models import library
from app.models.catalog import Fit, ModelEntry, Origin, PlannedSpeed
from app.tui.app import IngotApp
from app.tui.screens.find import FindScreen
from app.tui.screens.models import LoadForm, ModelsScreen, ModelTable
from quantize.manifest import Fidelity, FileSpeeds, Perplexity, Quality, TokenParity
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.planner.plan import Figures
from tests.app.tui.chat_app import answered, chat_of, shown
from tests.app.tui.conftest import ask, cells_of, is_ready
from tests.support import wait_until

GB = 10**9


@pytest.fixture(autouse=True)
def nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Only what a test names is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.models.catalog._ROOT", tmp_path)


@pytest.fixture
def pulled(home: Path, pebble_built: Path) -> library.Model:
    """Two builds in the library, one of them cut off."""
    model = library.Model("org/tiny-GGUF")
    model.folder.mkdir(parents=True)
    builds = []
    for label, name in (("Q4_K_M", "pebble-q4_k_m.gguf"), ("Q8_0", "pebble-q8_0.gguf")):
        file = Path(shutil.copyfile(pebble_built / name, model.folder / name))
        builds.append(library.Kept(label, "gguf", name, "c", {name: file.stat().st_size}, {}))
    (model.folder / "pebble-q8_0.gguf").write_bytes(b"cut")
    model = replace(model, builds=tuple(builds))
    library.write(model)
    return model


def table(screen: ModelsScreen) -> ModelTable:
    return screen.query_one(ModelTable)


def rows(screen: ModelsScreen) -> list[str]:
    return [cells(screen, at)[0] for at in range(len(table(screen).rows))]


def cells(screen: ModelsScreen, at: int) -> list[str]:
    return cells_of(table(screen), table(screen).rows[at])


def about(screen: ModelsScreen) -> str:
    return str(screen.query_one("#details", Static).content)


async def opened(pilot: Any, screen: ModelsScreen, count: int) -> ModelsScreen:
    pilot.app.show(screen)
    await wait_until(lambda: screen.query(ModelTable) and len(table(screen).rows) == count)
    await pilot.pause()
    return screen


async def test_one_is_filtered_sorted_and_chosen(bare: Any, pebble_built: Path) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        loaded = str(pebble_built / "onnx-int8")
        screen = await opened(pilot, ModelsScreen([str(pebble_built)], loaded), 4)
        assert [row for row in rows(screen) if row.startswith("●")] == ["● pebble · onnx-int8"]
        assert table(screen).record.recipe == "onnx-int8"  # type: ignore[union-attr]
        await pilot.press("alt+s")
        assert screen.query_one(".box").border_subtitle == "order: size"
        sizes = [entry.bytes or 0 for entry in table(screen).rows]
        assert sizes == sorted(sizes)
        await pilot.press("alt+s", "alt+s", "alt+s", *"onnx", "space", *"8-b")
        await wait_until(lambda: rows(screen) == ["● pebble · onnx-int8"])
        assert about(screen).startswith("onnx 8.5 bits ·")
        await pilot.press("escape")  # empties the filter first
        await wait_until(lambda: len(rows(screen)) == 4)
        await pilot.press(*"q")
        await wait_until(lambda: rows(screen) == ["pebble · q4_k_m", "pebble · q8_0"])
        await pilot.press("home", "down")
        await wait_until(lambda: about(screen).startswith("gguf 8.5 bits"))
        await wait_until(lambda: "fits" in about(screen))
        await pilot.press("enter")
        await wait_until(lambda: bare.ended_with is not None)
        (entry,) = bare.ended_with
        assert (entry.model, entry.options.recipe) == (str(pebble_built), "q8_0")
        # Several.
        bare.ended_with = None
        screen = await opened(pilot, ModelsScreen([str(pebble_built)], several=True), 4)
        await pilot.press("down", "ctrl+x", "down", "ctrl+x", "up", "up", "ctrl+x", "ctrl+x")
        assert sum(row.startswith("✓") for row in rows(screen)) == 2
        second, third = (table(screen).rows[i].key for i in (1, 2))
        await pilot.press("enter")
        await wait_until(lambda: bare.ended_with is not None)
    assert [entry.key for entry in bare.ended_with] == [second, third]


async def test_broken_files_are_not_chosen_and_removing_asks_first(
    bare: Any, pulled: library.Model, pebble_built: Path
) -> None:
    loaded = pulled.path(pulled.builds[0])
    async with bare.run_test(size=(80, 24)) as pilot:

        async def refused(key: str, text: str) -> None:
            await pilot.press(key)
            await wait_until(lambda: any(text in note.message for note in bare._notifications))
            assert bare.screen is screen

        screen = await opened(pilot, ModelsScreen([str(pebble_built)], str(loaded)), 6)
        await refused("delete", "is loaded")
        table(screen).go_to(table(screen).rows[-1].key)
        await refused("delete", "Only pulled models")
        await pilot.press("escape")
        screen = await opened(pilot, ModelsScreen(), 2)
        await pilot.press("down")
        await wait_until(lambda: "`ingot pull org/tiny-GGUF:Q8_0`" in about(screen))
        assert cells(screen, 1)[-1] == "broken"
        await refused("enter", "another size")
        await pilot.press("up")
        for answer in ("n", "y"):
            assert len(rows(screen)) == 2
            await pilot.press("delete")
            await wait_until(lambda: bare.screen is not screen)
            await pilot.pause()
            await pilot.press(answer)
            await wait_until(lambda: bare.screen is screen)
        await wait_until(lambda: rows(screen) == ["org/tiny-GGUF · Q8_0"])
    assert not loaded.exists()
    assert (pulled.folder / "pebble-q8_0.gguf").exists()


async def test_nothing_there(bare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, ModelsScreen(), 0)
        await wait_until(lambda: "Enter finds one on the hub" in about(screen))
        await pilot.press("enter")
        await wait_until(lambda: isinstance(bare.screen, FindScreen))


def memory(form: LoadForm) -> str:
    return str(form.query_one("#load-memory", Static).content)


async def test_models_and_their_settings_in_the_middle_of_a_chat(
    chat_app: IngotApp, gguf_file: Path
) -> None:
    """The next answer is the other file's, in the same chat."""
    remember(gguf_file, LoadSettings(context=256, kv_type="q8_0"))
    app, host = chat_app, chat_app.services.host
    async with app.run_test(size=(120, 40)) as pilot:

        async def loaded(context: int) -> None:
            await wait_until(lambda: is_ready(app) and host.engine.context == context)  # type: ignore[union-attr]

        async def picker() -> Any:
            """The list, with the cursor on the loaded file."""
            await pilot.press("ctrl+t")
            await wait_until(lambda: isinstance(app.screen, ModelsScreen))
            listed = app.screen.query_one(ModelTable)
            await wait_until(lambda: listed.record and listed.record.key == listed.current)
            return app.screen

        async def settings() -> LoadForm:
            await wait_until(lambda: app.screen.query("#load-memory"))
            form = app.screen.query_one(LoadForm)
            await wait_until(lambda: "needs" in memory(form))
            return form

        await loaded(256)
        await shown(app)
        await ask(pilot, "Who are you?")
        await answered(chat_of(app), 2)
        await picker()
        await pilot.press("ctrl+s")
        form = await settings()
        assert form.text_of("context") == "256"
        await pilot.click("#load-reset")
        assert form.text_of("context") == form.text_of("kv_type") == ""
        assert "usual" in form.query_one("#threads", Input).placeholder
        await pilot.press("escape", "escape")  # which changes nothing
        assert remembered(gguf_file) == LoadSettings(context=256, kv_type="q8_0")
        await picker()
        await pilot.click("#load")
        form = await settings()
        before = memory(form)
        await pilot.click("#load-reset")
        form.query_one("#context").focus()
        await pilot.press(*"128", "tab", "0")
        await wait_until(lambda: "threads" in form.errors)
        await pilot.press("ctrl+s")  # refused, and the cursor is where it is wrong
        assert form.query_one("#threads", Input).has_focus
        await pilot.press("backspace", "1")
        await wait_until(lambda: memory(form) not in ("", before))
        await pilot.click("#load-use")
        await loaded(128)
        assert host.details.endswith("1 thread")
        assert remembered(gguf_file) == LoadSettings(context=128, threads=1)

        screen = await picker()
        await pilot.press(*"q4_k")
        await wait_until(lambda: rows(screen) == ["pebble · q4_k_m"])
        await pilot.press("enter")
        await wait_until(lambda: host.label == "pebble · q4_k_m" and is_ready(app))
        await pilot.pause()
        speed = chat_of(app).answer.figures.decode_tps
        assert speed is None, "that is the other model's"
        await ask(pilot, "And now?")
        await answered(chat_of(app), 4)
        store = app.services.store
        messages = store.messages(store.chats()[0].id)
        labels = [m.model for m in messages if m.role is Role.ASSISTANT]
    assert labels == ["pebble · q8_0", "pebble · q4_k_m"]


@pytest.mark.usefixtures("utc")
def test_picture(bare: Any, snap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    noon = 1_780_000_000.0
    text = Perplexity(12.3, 0.4, 4096, "evaluation.txt", "0")
    four = ModelEntry(
        "built", "qwen2.5-0.5b", "q4_k_m", Origin.BUILT, Path("built/qwen2.5-0.5b-q4_k_m.gguf"),
        "gguf", 4, 397 * 10**6, "q4_k_m", Quality(0.412, 500),
        Fidelity(text, 0.02, 0.001, 0.2, 0.93),
        TokenParity(403, 0), FileSpeeds(250.0, 35.0, 139.0), ("1 tensor got a larger type",),
        PlannedSpeed(Figures(900.0, {1: 68.5}), noon, chosen=True), bits_per_weight=6.4,
    )  # fmt: skip
    eight = replace(
        four, recipe="q8_0", path=Path("built/q8_0.gguf"), bits=8, bytes=531 * 10**6, picked="q8_0",
        bits_per_weight=8.6, quality=None, speed=None, measured=None, notes=(),
    )  # fmt: skip
    library_one = ModelEntry(
        "org/a-model-with-a-rather-long-name-GGUF:Q4_K_M",
        "org/a-model-with-a-rather-long-name-GGUF",
        "Q4_K_M", Origin.LIBRARY, Path("m/x.gguf"), "gguf", 4, 40 * GB,
    )  # fmt: skip
    broken = replace(library_one, model="org/b", name="org/b", broken="a file is missing")
    file = ModelFile(
        four.path, "llamacpp", "qwen", "qwen2", "Q4_K", 397 * 10**6, 32768, 24, 14, 2, 64, 151936,
        None, None,
    )  # fmt: skip
    listed = [four, eight, library_one, broken]
    monkeypatch.setattr("app.tui.screens.models.catalog", lambda given: listed)
    monkeypatch.setattr(
        "app.tui.screens.models.fit",
        lambda entry: Fit(file, 4096, int(entry.bytes * 1.4), 16 * GB),
    )

    async def open_it(pilot: Any) -> None:
        screen = await opened(pilot, ModelsScreen(current="built/q8_0.gguf"), 4)
        await wait_until(lambda: cells(screen, 2)[-1] == "too big")
        await pilot.press("up")
        await wait_until(lambda: "needs" in about(screen))

    assert snap(bare, run_before=open_it)


async def test_a_file_that_nobody_can_read_hides_no_other(
    bare: Any, pebble_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its reading raises, those that follow are read too."""
    folder, whole = tmp_path / "files", read_model
    folder.mkdir()
    data = (pebble_built / "pebble-q8_0.gguf").read_bytes()
    count = b"llama.block_count"
    at = data.index(count) + len(count)
    nan = (6).to_bytes(4, "little") + b"\0\0\xc0\x7f"  # a float that is no number
    for name, bytes_ in {"a": data[:at] + nan + data[at + 8 :], "b": data, "c": data}.items():
        (folder / f"{name}.gguf").write_bytes(bytes_)

    def read(path: Path) -> ModelFile:
        if path.name == "b.gguf":
            raise OverflowError("not foreseen")
        return whole(path)

    monkeypatch.setattr("app.models.catalog.read_model", read)
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, ModelsScreen([str(folder)]), 3)
        await wait_until(lambda: cells(screen, 2)[-1] == "fits")
        assert [cells(screen, at)[-1] for at in range(2)] == ["broken", "broken"]
