"""Draw assets/chat.svg and the others: the terminal app's screens, with Pebble at work in them.

Run it after `make demo`:  .venv/bin/python assets/screens.py [NAME]...
"""

from __future__ import annotations

import asyncio
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
SIZE = (118, 34)


async def until(true: Callable[[], Any], seconds: float = 60.0) -> None:
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


async def chat(pilot: Any) -> None:
    """Three answers with their figures."""
    for text in ("What is the capital of France?", "And of Japan?", "Tell me a story about a fox."):
        await ask(pilot, text)
        await pilot.pause(0.5)
        await until(lambda: not pilot.app.screen.busy)


async def compare(pilot: Any) -> None:
    """Two files, one question."""
    await pilot.press("f3")
    await ask(pilot, "Tell me a story about a robot.")
    screen = pilot.app.screen
    await until(lambda: screen.report is not None and not screen.running)


async def batch(pilot: Any) -> None:
    """A job over the demo's prompts, in a folder of its own."""
    os.chdir(os.environ["INGOT_HOME"])
    rows = Path("prompts.jsonl")
    rows.write_text(PROMPTS.read_text(encoding="utf-8"), "utf-8")
    await pilot.press("f4")
    await pilot.pause(0.5)
    screen = pilot.app.screen
    screen.query_one("BatchForm Input").value = str(rows)
    await pilot.press("ctrl+g")
    await until(lambda: screen.job and screen.job.view().phase == "done", 120)


async def monitor(pilot: Any) -> None:
    """What the machine and the engine do, after some answers."""
    await chat(pilot)
    await pilot.press("f6")
    await pilot.pause(4.0)


SCREENS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "chat": chat,
    "compare": compare,
    "batch": batch,
    "monitor": monitor,
}


async def draw(name: str) -> None:
    """One picture, of an app of its own."""
    from app.tui.app import IngotApp
    from app.tui.services import Start, open_services

    with tempfile.TemporaryDirectory(prefix="ingot-screens-") as home:
        os.environ["INGOT_HOME"] = home
        with open_services(Start(str(BUILT))) as services:
            app = IngotApp(services)
            async with app.run_test(size=SIZE) as pilot:
                await until(lambda: services.host.engine is not None)
                await SCREENS[name](pilot)
                await pilot.pause(1.0)
                (HERE / f"{name}.svg").write_text(app.export_screenshot(title="Ingot"), "utf-8")


def main() -> int:
    for name in sys.argv[1:] or SCREENS:
        asyncio.run(draw(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
