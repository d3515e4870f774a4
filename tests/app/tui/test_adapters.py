"""/adapter: which LoRA adapter answers is chosen in the prompt and seen beside the model's name."""

from pathlib import Path

from app.tui.app import IngotApp
from app.tui.services import Start, open_services
from tests.adapters import write_adapter
from tests.app.tui.chat_app import answered
from tests.app.tui.conftest import ask, is_ready
from tests.app.tui.test_frame import loaded
from tests.support import wait_until


async def test_it_is_chosen_in_the_prompt(
    home: Path, gguf_file: Path, pebble: Path, tmp_path: Path
):
    files = (
        write_adapter(pebble, tmp_path / f"{name}.gguf", len(name)) for name in ("poet", "law")
    )
    given = tuple(map(str, files))
    with open_services(Start(str(gguf_file), adapters=given)) as services:
        app, host = IngotApp(services), services.host
        async with app.run_test(size=(120, 30)) as pilot:
            await wait_until(lambda: is_ready(app))
            screen = app.screen
            await wait_until(lambda: "+ poet" in str(loaded(app).visual))
            await pilot.press(*"/adapter l")
            await pilot.press("tab")
            assert screen.prompt.text == "/adapter law"
            await pilot.press("enter")
            await wait_until(lambda: "+ law" in str(loaded(app).visual))
            assert host.adapter == "law"
            await pilot.press(*"Hello", "enter")
            await answered(screen, 2)
            assert screen.path[-1].model == host.label
            assert host.label.endswith(" + law")
            await ask(pilot, "/adapter nix")
            await wait_until(lambda: "there is: poet, law" in str(screen.menu.visual))
            await ask(pilot, "/adapter")
            told = "law is on. There is: poet, law, or off."
            await wait_until(lambda: told in [one.message for one in app._notifications])
            await ask(pilot, "/adapter off")
            await wait_until(lambda: "+" not in str(loaded(app).visual))
            assert host.adapter is None
