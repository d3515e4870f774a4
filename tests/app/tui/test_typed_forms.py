"""What is written to the terminal at once, with keys that go on to the next field, stands in the
fields that it was typed for."""

import random
import shutil
import string
from pathlib import Path

import pytest

from tests.app.tui.test_find import hub  # noqa: F401
from tests.app.tui.tmux import Tmux
from tests.quantize.hub.fakehub import FakeHub

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

ROUNDS = 2
ENTER, TAB, BACK, CLEAR, SPACE = "\r", "\t", "\x1b[Z", "\x15", " "
BATCH = ("Input", "Field", "Template", "Rows", "Model", "System")


def word(draw: random.Random) -> str:
    """Nothing that a path begins with here, so that none is suggested."""
    return "zq" + "".join(
        draw.choices(string.ascii_lowercase + string.digits, k=draw.randint(1, 9))
    )


def filled(window: Tmux, draw: random.Random, on: dict[str, str], more: str = "") -> None:
    """Fill in the fields of these labels, each with the keys that go on to the next, in one burst;
    wait until each text stands beside its label, all of it and nothing else, and the screen has
    ``more``."""
    lines = {label: word(draw) for label in on}
    window.send("".join(f"{CLEAR}{text}{on[label]}" for label, text in lines.items()).encode())
    beside = [rf"(?=[\s\S]*\s{label} +{text}[ │])" for label, text in lines.items()]
    window.wait(rf"\A{''.join(beside)}(?=[\s\S]*{more})")


def test_forms_and_the_search_of_the_hub(
    tmp_path: Path,
    home: Path,
    gguf_file: Path,
    hub: FakeHub,  # noqa: F811
) -> None:
    with Tmux(tmp_path / "tmux", 150, 50) as window:
        env = {"INGOT_HOME": str(home), "HF_ENDPOINT": hub.url}
        window.start("chat", str(gguf_file), env=env)
        window.wait("pebble ·")  # in the header, once the model is loaded
        draw = random.Random("forms")
        window.keys("F4")
        window.wait("First rows")
        batch = {**dict.fromkeys(BATCH, ENTER), BATCH[-1]: ENTER + BACK * len(BATCH)}
        for _ in range(ROUNDS):
            filled(window, draw, batch)
        _quantize(window, draw)
        _search(window, draw)


def _quantize(window: Tmux, draw: random.Random) -> None:
    """With cards and boxes between the fields, where keys act that are no text."""
    window.keys("F5")
    window.wait("Measure quality")
    for ticked in range(ROUNDS):
        boxes = f"{SPACE}{TAB}{ENTER}"
        on = {
            "Model": ENTER,
            "Into": ENTER + SPACE + TAB + TAB,
            "Targets": ENTER,
            "Matrix": ENTER,
            "LoRA": ENTER + boxes + BACK * 8,
        }
        measure, again = (r"\[ \]", r"\[x\]") if ticked % 2 == 0 else (r"\[x\]", r"\[ \]")
        filled(window, draw, on, f"{measure} Measure quality and speed +{again} Build again")


def _search(window: Tmux, draw: random.Random) -> None:
    """Behind the enter that searches one types on in the line, and behind tab on a box."""
    window.keys("F2")
    window.wait("Write a message")
    window.keys("C-t")
    window.wait("Find models")
    window.keys("M-m")
    window.wait("Originals")
    for ticked in range(ROUNDS):
        first, last = word(draw), word(draw)
        window.send(f"{CLEAR}{first}{TAB}{SPACE}{BACK}{last}".encode())
        box = r"\[ \]" if ticked % 2 == 0 else r"\[x\]"
        # With builds there, enter would go to them.
        window.wait(rf"▎{last} [\s\S]*{box} GGUF(?![\s\S]*Q4_K_M)[\s\S]*Nothing was found")
        window.send(f"{CLEAR}{first}{ENTER}{last}".encode())
        window.wait(rf"▎{first}{last} ")
