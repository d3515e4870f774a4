"""Draw the pictures of the terminal app: assets/*.svg (README), assets/tour/*.svg (docs/tour.md).

Run it after `make demo`:

    .venv/bin/python assets/screens.py [--model MODEL] [NAME]...

MODEL is what `ingot chat` takes, Pebble's files without it; NAME one of SCREENS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BUILT = HERE / "pebble-built"
PROMPTS = HERE / "prompts" / "demo.jsonl"
SIZE = (120, 36)  # of the README's
SIZES = ((80, 24), (120, 40), (200, 60))
THEMES = ("ingot", "ingot-light")
_TIMES = 150  # the prompts of the demo, so that the job runs while it is drawn
SERVER = HERE.parent / "tests" / "app" / "tools" / "server.py"  # of tools
_CONFIG = f"""
[sampling]
temperature = 0.0

[mcp.servers.zones]
command = {json.dumps(sys.executable)}
args = [{json.dumps(str(SERVER))}, "zone"]
"""
PEBBLE = ("What is the capital of France?", "And of Japan?", "Tell me a story about a fox.")
REAL = (
    "What is gravity? Answer in one sentence.",
    "Write a Python function that says whether a number is even.",
    "Name three rivers.",
)


async def until(true: Callable[[], Any], seconds: float = 120.0) -> None:
    """Let the app go on until ``true()``."""
    limit = time.monotonic() + seconds
    while not true():
        if time.monotonic() > limit:
            raise TimeoutError("the screen did not come to what was waited for")
        await asyncio.sleep(0.05)


async def ask(pilot: Any, text: str) -> None:
    """Type into the prompt of the screen that is shown."""
    prompt = pilot.app.screen.query_one("Prompt")
    prompt.text = text
    prompt.focus()
    await pilot.press("enter")


async def call(pilot: Any) -> None:
    """A call of a tool that is asked for. The demo model makes none by itself: it has to."""
    from dataclasses import replace

    tools = pilot.app.services.host.tools
    usual = tools.tools

    def required(names: Any) -> Any:
        found = usual(names)
        return found and replace(found, required=True, parallel=False)

    tools.tools = required
    await ask(pilot, "/tools zones")
    await pilot.pause(1.0)
    await until(lambda: not pilot.app.screen.busy)
    await ask(pilot, "What is the offset of UTC?")
    await until(lambda: type(pilot.app.screen).__name__ == "CallScreen")
    await pilot.pause(1.0)
    tools.tools = usual


async def called(pilot: Any) -> None:
    """Its result, opened, and the answer behind it."""
    await call(pilot)
    await pilot.press("enter")
    await until(lambda: not pilot.app.screen.busy)
    pilot.app.screen.query_one("CallLine").toggle(True)
    await pilot.pause(1.0)


async def welcome(pilot: Any) -> None:
    """An empty chat."""
    await pilot.pause(1.0)


async def chat(pilot: Any) -> None:
    """Three answers with their figures."""
    pebble = pilot.app.services.host.label.startswith("pebble")
    for text in PEBBLE if pebble else REAL:
        await ask(pilot, text)
        await pilot.pause(0.5)
        await until(lambda: not pilot.app.screen.busy)
    await pilot.press("ctrl+end")


async def compare(pilot: Any) -> None:
    """Two files, one question."""
    await pilot.press("f3")
    await pilot.pause(0.5)
    await ask(pilot, "Tell me a story about a robot.")
    screen = pilot.app.screen
    await until(lambda: screen.report is not None and not screen.running)


async def batch(pilot: Any) -> None:
    """A job over the demo's prompts, several times as many, in a folder of its own."""
    os.chdir(os.environ["INGOT_HOME"])
    rows = Path("prompts.jsonl")
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    text = "\n".join(
        line.replace('"id": "', f'"id": "{n}-').replace('"id":"', f'"id":"{n}-')
        for n in range(_TIMES)
        for line in lines
    )
    rows.write_text(text, "utf-8")
    await pilot.press("f4")
    await pilot.pause(0.5)
    screen = pilot.app.screen
    screen.query_one("BatchForm Input").value = str(rows)
    await pilot.pause(0.5)
    await pilot.press("ctrl+g")
    await until(lambda: screen.job and screen.job.view().done > 0.2 * _TIMES * len(lines), 300)
    await pilot.pause(1.0)


async def batch_form(pilot: Any) -> None:
    """A job that is not started yet."""
    await pilot.press("f4")
    await pilot.pause(0.5)
    pilot.app.screen.query_one("BatchForm Input").value = str(PROMPTS)
    await pilot.pause(2.0)


async def quantize(pilot: Any) -> None:
    """Recipes for the demo's model."""
    await pilot.press("f5")
    await pilot.pause(0.5)
    pilot.app.screen.query_one("#model").value = str(HERE / "pebble")
    await pilot.pause(4.0)


async def files(pilot: Any) -> None:
    """What was built of it, measured."""
    await quantize(pilot)
    await pilot.press("f10", "f10")
    await pilot.pause(2.0)


async def monitor(pilot: Any) -> None:
    """What the machine and the engine do, after some answers."""
    await chat(pilot)
    await pilot.press("f6")
    await pilot.pause(4.0)


async def models(pilot: Any) -> None:
    """All files that can be loaded."""
    await pilot.press("ctrl+t")
    await pilot.pause(2.0)


async def help_(pilot: Any) -> None:
    """All keys of the chat."""
    await pilot.press("f1")
    await pilot.pause(1.0)


async def palette(pilot: Any) -> None:
    """All commands."""
    await pilot.press("ctrl+p")
    await pilot.pause(1.0)


async def themes(pilot: Any) -> None:
    """The app as another theme shows it."""
    await chat(pilot)
    await pilot.press("f12", "down")
    await pilot.pause(1.0)


SCREENS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "chat": chat,
    "compare": compare,
    "batch": batch,
    "quantize": quantize,
    "monitor": monitor,
}
MORE: dict[str, Callable[[Any], Awaitable[None]]] = {
    "welcome": welcome,
    "call": call,
    "called": called,
    "batch-form": batch_form,
    "files": files,
    "models": models,
    "help": help_,
    "palette": palette,
    "themes": themes,
}


async def draw(name: str, model: str, pictures: list[tuple[tuple[int, int], str, Path]]) -> None:
    """One screen, brought there once, in several sizes and themes."""
    from app.tui.app import IngotApp
    from app.tui.services import Start, open_services

    with tempfile.TemporaryDirectory(prefix="ingot-screens-") as home:
        os.environ["INGOT_HOME"] = home
        settings = Path(home) / "config" / "config.toml"
        settings.parent.mkdir()
        settings.write_text(_CONFIG, "utf-8")
        with open_services(Start(model)) as services:
            app = IngotApp(services)
            async with app.run_test(size=pictures[0][0]) as pilot:
                await until(lambda: services.host.engine is not None)
                await {**SCREENS, **MORE}[name](pilot)
                for size, theme, out in pictures:
                    if name != "themes":
                        app.theme = theme
                    await pilot.resize_terminal(*size)
                    await pilot.pause(1.5)
                    out.parent.mkdir(exist_ok=True)
                    out.write_text(app.export_screenshot(title="Ingot"), "utf-8")


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--model", default=str(BUILT))
    reader.add_argument("names", nargs="*", metavar="NAME", choices=[*SCREENS, *MORE, []])
    wanted = reader.parse_args()
    for name in wanted.names or [*SCREENS, *MORE]:
        pictures = []
        if name in SCREENS:
            pictures = [(SIZE, THEMES[0], HERE / f"{name}.svg")]
            for width, height in SIZES:
                for theme in THEMES:
                    file = (
                        f"{name}-{width}x{height}{'-light' if theme.endswith('light') else ''}.svg"
                    )
                    pictures.append(((width, height), theme, HERE / "tour" / file))
        else:
            pictures = [(SIZE, THEMES[0], HERE / "tour" / f"{name}.svg")]
        asyncio.run(draw(name, wanted.model, pictures))
        os.chdir(HERE)  # a job's folder is gone by now
    return 0


if __name__ == "__main__":
    sys.exit(main())
