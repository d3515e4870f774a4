"""One run of the terminal app, from the command line's wishes to the exit code."""

from __future__ import annotations

import sys

from app.exitcodes import ExitCode
from app.tui import terminal
from app.tui.app import IngotApp
from app.tui.services import Start, open_services
from runtimes.paths import state_dir


def run(start: Start, *, mouse: bool = True) -> int:
    """Draw the app until the user leaves; the exit code. Raises what ``open_services`` does."""
    log = state_dir() / "chat.log"
    with open_services(start) as services, terminal.stderr_to(log):
        app = IngotApp(services, driver_class=terminal.driver())
        app.run(mouse=mouse and services.config.mouse)
    if app.broken:
        sys.stderr.write(f"ingot: internal error; {log} says where\n")
        return int(ExitCode.INTERNAL)
    return app.return_code or 0
