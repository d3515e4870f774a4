"""`ingot chat --web`: the app in a browser, and who is let in."""

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from app.tui.web import BrowserServer
from runtimes.errors import RequestError
from runtimes.machine.processes import child_environment, python
from tests.support import until, wait_until

QUESTION = "What is the capital of France?"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Served:
    """The running command, and the address that it shows."""

    def __init__(self, log: Path, *arguments: object) -> None:
        self._log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                python("-m", "app", "chat", *arguments, "--web", "--port", 0),
                stderr=file,
                stdin=subprocess.DEVNULL,
                env=child_environment(),
            )
        found = until(lambda: re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", log.read_text()))
        assert found is not None
        self.address = found[0]
        self.root = self.address.split("?")[0]

    def apps(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def served(home: Path, tmp_path: Path, pebble_built: Path) -> Iterator[Served]:
    made = Served(tmp_path / "served.log", pebble_built)
    yield made
    made.process.send_signal(signal.SIGINT)
    assert made.process.wait(60) == 0


async def test_nobody_gets_a_page_without_the_token(served: Served) -> None:
    jar = aiohttp.CookieJar(unsafe=True)  # of an address without a name, too
    async with aiohttp.ClientSession(cookie_jar=jar) as browser:

        async def status(address: str, **headers: str) -> int:
            async with browser.get(address, headers=headers) as answer:
                return answer.status

        for path in ("", "ws", "static/js/textual.js", "download/1", "?token=", "?token=wrong"):
            assert await status(served.root + path) == 403, path
        assert await status(served.address, Host="example.org") == 403
        async with browser.get(served.address) as answer:
            assert answer.status == 200  # and the cookie is there from now on
            assert str(answer.url) == served.root, "the token is out of sight"
            policy = answer.headers["Content-Security-Policy"].split("; ")
            host = served.root.removeprefix("http://").rstrip("/")
            # What the page's own script needs, and nothing of other hosts.
            assert policy == [
                *("default-src 'self'", "style-src 'self' 'unsafe-inline'"),
                *("script-src 'self' 'unsafe-inline'", "img-src 'self' data:"),
                *("font-src 'self' data:", f"connect-src 'self' ws://{host}"),
                "frame-ancestors 'none'",
            ]
        assert await status(served.root + "static/js/textual.js") == 200
        assert await status(served.root, Host="example.org") == 403
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await browser.ws_connect(served.root + "ws", origin="http://example.org")
        assert not served.apps()

        # As the page's own script does.
        async with browser.ws_connect(served.root + "ws?width=100&height=30") as page:
            received = b""

            async def until_drawn(words: str) -> None:
                nonlocal received
                while words not in _ESCAPES.sub("", received.decode("utf-8", "replace")):
                    message = await page.receive(timeout=90)
                    assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)
                    received += message.data if isinstance(message.data, bytes) else b""

            await until_drawn("q4_k_m")  # the model is loaded
            await page.send_json(["stdin", f"{QUESTION}\r"])
            await until_drawn("capital of France is Paris")
            assert served.apps()
    await wait_until(lambda: not served.apps())  # the app ends with its page


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        told = f"port {port} of 127.0.0.1: Address already in use; --port names another"
        with pytest.raises(RequestError, match=told):
            BrowserServer("ingot", port, "token")


def test_what_is_missing_is_named(home: Path) -> None:
    code = "import sys; sys.modules['textual_serve'] = None; import app.__main__ as m; m.main()"
    done = subprocess.run(
        python("-c", f"{code}", "chat", "--web"),
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    assert "--web needs textual-serve: `pip install 'ingot[web]'`" in done.stderr
