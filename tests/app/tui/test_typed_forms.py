"""What is written to the terminal at once, with keys that go on to the next field, stands in the
fields that it was typed for."""

from __future__ import annotations

import random
import shutil
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.tui.test_find import hub  # noqa: F401
from tests.app.tui.tmux import Tmux
from tests.quantize.hub.fakehub import FakeHub

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

ROUNDS = 4
ENTER, TAB, BACK, CLEAR, SPACE = "\r", "\t", "\x1b[Z", "\x15", " "
BATCH = ("Input", "Field", "Template", "Rows", "Model", "System")


@pytest.fixture
def window(tmp_path: Path, home: Path, gguf_file: Path, hub: FakeHub) -> Iterator[Tmux]:  # noqa: F811
    with Tmux(tmp_path / "tmux", 150, 50) as found:
        env = {"INGOT_HOME": str(home), "HF_ENDPOINT": hub.url}
        found.start("chat", str(gguf_file), env=env)
        found.wait("pebble ·")  # in the header, once the model is loaded
        yield found


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


def test_the_form_of_a_batch_job(window: Tmux) -> None:
    draw = random.Random("batch")
    window.keys("F4")
    window.wait("First rows")
    for _ in range(ROUNDS):
        filled(window, draw, {**dict.fromkeys(BATCH, ENTER), BATCH[-1]: ENTER + BACK * len(BATCH)})


def test_the_form_of_quantize(window: Tmux) -> None:
    """With cards and boxes between the fields, where keys act that are no text."""
    draw = random.Random("quantize")
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


def test_the_search_of_the_hub(window: Tmux) -> None:
    """Behind the enter that searches one types on in the line, and behind tab on a box."""
    draw = random.Random("hub")
    window.keys("C-t")
    window.wait("Find models")
    window.keys("M-m")
    window.wait("Originals")
    for ticked in range(ROUNDS):
        first, last = word(draw), word(draw)
        window.send(f"{CLEAR}{first}{TAB}{SPACE}{BACK}{last}".encode())
        box = r"\[ \]" if ticked % 2 == 0 else r"\[x\]"
        window.wait(rf"▎{last} [\s\S]*{box} GGUF")
        window.send(f"{CLEAR}{first}{ENTER}{last}".encode())
        window.wait(rf"▎{first}{last} ")
