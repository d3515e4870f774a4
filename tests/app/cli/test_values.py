"""What `app.cli.options` takes by itself, Typer would have taken for the same."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any

import pytest
import typer

from app.cli import options

TEXTS = "0 1 8 9 12 007 00 1.0 1.5 0.1 .5 5. 1e3 -1 +2 1_0 ٣ inf nan x 1234567890123".split()


def option(kind: Any, **limits: Any) -> Any:
    app = typer.Typer()

    def command(taken: Any = None) -> None: ...

    command.__annotations__ = {"taken": Annotated[kind, typer.Option(**limits)], "return": None}
    app.command()(command)
    (found,) = (one for one in typer.main.get_command(app).params if one.name == "taken")
    return found


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("limits", [{}, {"min": 1, "max": 9}, {"min": 8}], ids=str)
def test_numbers(kind: type, limits: dict[str, int]) -> None:
    param = option(kind, **limits)

    def outcome(take: Any, text: str) -> Any:
        try:
            found = take(param, None, text)
        except typer.BadParameter as error:
            return error.message
        return type(found), repr(found)

    for text in (*TEXTS, "", " 3"):
        assert outcome(options._value, text) == outcome(options._theirs, text), text


def test_plain_numbers_need_no_pydantic() -> None:
    words = ["plan", "none", "--threads", "1", "--context", "64"]
    look = (
        f"import sys; from app.cli.main import main; code = main({words}); "
        "sys.exit(10 * code + ('pydantic' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, check=False)
    assert done.returncode == 30, done.stderr
