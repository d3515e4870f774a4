"""The terminal app in a browser: textual-serve on this machine, behind a token.

Each page gets an app of its own, in a process that ends with the page. The address that is shown
holds the token, which a cookie replaces at once. A request needs the cookie, the address's own host
(a foreign name may point here, too) and, where the browser names one, the address's own origin.
"""

import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from textual_serve.server import Server

from app import console
from runtimes.errors import RequestError
from runtimes.machine.processes import child_environment, python

HOST = "127.0.0.1"
# xterm.js measures letters by inline styles; the fonts of other hosts are left out.
_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; font-src 'self' data:; connect-src 'self' ws://{host};"
    " frame-ancestors 'none'"
)


class BrowserServer(Server):
    """textual-serve's, which lets nobody in without the token. Takes a free port for 0."""

    def __init__(self, command: str, port: int, token: str) -> None:
        self._socket = _listen(port)
        port = self._socket.getsockname()[1]
        super().__init__(command, HOST, port, title="Ingot")
        self._token = token
        self._cookie = f"ingot-{port}"  # a browser sends a host's cookies to all of its ports
        self.address = f"{self.public_url}/?token={token}"

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard)
        app.on_response_prepare.append(self._protect)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        own = f"{HOST}:{self.port}"
        if request.host != own or request.headers.get("Origin", f"http://{own}") != f"http://{own}":
            raise web.HTTPForbidden(text=f"Open http://{own}/ itself.\n")
        if request.path == "/" and self._is_token(request.query.get("token")):
            answer = web.HTTPSeeOther("/")
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="Strict")
            raise answer
        if not self._is_token(request.cookies.get(self._cookie)):
            raise web.HTTPForbidden(text="Open the address that `ingot chat --web` shows.\n")
        return await handler(request)

    async def _protect(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Content-Security-Policy"] = _POLICY.format(host=request.host)
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Content-Type-Options"] = "nosniff"

    def _is_token(self, given: str | None) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), self._token.encode())

    async def on_startup(self, app: web.Application) -> None:
        console.note(f"Ingot is at {self.address}\nctrl+c ends it, and the apps in its pages")

    def serve(self, debug: bool = False) -> None:
        """Answer until ctrl+c or SIGTERM."""
        web.run_app(self._make_app(), sock=self._socket, print=None)


def _listen(port: int) -> socket.socket:
    listening = socket.socket()
    if sys.platform != "win32":  # where it would take the port away from another program
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()  # the address is told before the server runs: who is early waits
    except OSError as error:
        listening.close()
        told = f"port {port} of {HOST}: {error.strerror}; --port names another"
        raise RequestError(told) from None
    return listening


def serve(arguments: list[str], port: int) -> None:
    """Serve `ingot ARGUMENTS`, which finds by ``terminal.in_browser`` that it is to draw. Raises
    RequestError for a port that cannot be had."""
    os.environ.update(child_environment())
    words: Any = python("-m", "app", *arguments)
    command = subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
    BrowserServer(command, port, secrets.token_urlsafe(24)).serve()
