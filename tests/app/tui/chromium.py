"""A headless Chromium, driven by its DevTools protocol."""

import asyncio
import base64
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Page:
    """``received`` is all that came through the page's websocket, without escape sequences."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._frames: list[bytes] = []
        self._reading = asyncio.create_task(self._read())

    @property
    def received(self) -> str:
        return _COLOURS.sub("", b"".join(self._frames).decode("utf-8", "replace"))

    async def _read(self) -> None:
        async for message in self._socket:
            said = message.json()
            if (waiting := self._waiting.pop(said.get("id", 0), None)) is not None:
                waiting.set_result(said)
            elif said.get("method") == "Network.webSocketFrameReceived":
                frame = said["params"]["response"]
                if frame["opcode"] == 2:
                    self._frames.append(base64.b64decode(frame["payloadData"]))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        said = await self._waiting.get(number, self._waiting[number])
        assert "error" not in said, said
        return dict(said["result"])

    async def look(self, script: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return found["result"].get("value")

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def enter(self) -> None:
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **key)


@asynccontextmanager
async def page(address: str, profile: Path) -> AsyncIterator[Page]:
    """A page of its own browser, which has begun to load ``address``."""
    assert PROGRAM is not None
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    # Where Chromium says its port, and the only place where it says it once it listens.
    told = profile / "DevToolsActivePort"
    browser = subprocess.Popen(
        [PROGRAM, *words, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while not told.is_file() or "\n" not in told.read_text():
                await asyncio.sleep(0.05)
            port = told.read_text().split()[0]
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                found = next(one for one in await answer.json() if one["type"] == "page")
            socket = await session.ws_connect(found["webSocketDebuggerUrl"], max_msg_size=0)
            made = Page(socket)
            await made.call("Network.enable")
            await made.call("Page.navigate", url=address)
            yield made
    finally:
        browser.kill()
        browser.wait()
