from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.builds.run import DEFAULT_RECIPES, Settings, offered
from quantize.errors import UsageError
from quantize.recipes import RECIPES


def test_the_command_says_what_was_chosen(pebble: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("words")
    settings = Settings(
        f" {pebble} ",
        ("q8_0", "onnx-int4"),
        out=str(tmp_path / "o"),
        imatrix=str(tmp_path / "text.txt"),
        lora="someone/an-adapter",
        measure=False,
        fresh=True,
    )
    out, text = str(tmp_path / "o"), str(tmp_path / "text.txt")
    assert settings.arguments() == [
        *(str(pebble), "--recipe", "q8_0,onnx-int4", "--out", out, "--imatrix", text),
        *("--lora", "someone/an-adapter", "--no-measure", "--fresh"),
    ]
    assert Settings(str(pebble)).arguments() == [str(pebble), "--recipe", ",".join(DEFAULT_RECIPES)]


def test_the_command_takes_every_argument(pebble: Path, tmp_path: Path, command: Any) -> None:
    """Asked with an --out that is refused before any work."""
    (tmp_path / "text.txt").write_text("words " * 4000)
    settings = Settings(
        *(str(pebble), ("q8_0",), "1.2GB", str(pebble), str(tmp_path / "text.txt")),
        measure=False,
        fresh=True,
    )
    done = command("quantize", *settings.arguments(), "--json")
    assert "the model's own folder" in done.stdout + done.stderr


def test_a_home_folder_and_a_hub_name_are_told_apart(monkeypatch: pytest.MonkeyPatch, pebble: Path):
    monkeypatch.setenv("HOME", str(pebble.parent))
    assert Settings("~/pebble").source == str(pebble)
    assert Settings("org/name@v1").arguments()[0] == "org/name@v1"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings("  "), "name a model"),
        (Settings("/no/such"), "there is no folder /no/such"),
        (Settings("org/name", ()), "at least one recipe"),
        (Settings("org/name", ("q4_k_n",)), "did you mean"),
        (Settings("org/name", imatrix="/no/text"), "no file /no/text"),
    ],
)
def test_what_cannot_be_started_says_what_to_change(settings: Settings, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        settings.arguments()


def test_every_recipe_is_offered_once_the_usual_ones_first() -> None:
    names = [recipe.name for recipe in offered()]
    assert tuple(names[:4]) == DEFAULT_RECIPES == ("q4_k_m", "q8_0", "onnx-int4", "onnx-int8")
    assert sorted([*names, "onnx-fp16"]) == sorted(RECIPES)  # which is for GPUs
    floats = [recipe.is_float for recipe in offered()]
    assert floats == sorted(floats)
