"""Pictures of a file of prompts to several files: the form, results, answers, blind votes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.compare.answers import Told, equal_from_start
from app.compare.results import Ballot, FileResult, PromptResult, Results, Sided, pair_of
from app.models.catalog import ModelEntry, Origin
from app.tui.screens.compare import AnswersScreen
from app.tui.screens.compare_prompts import BlindScreen, ComparePromptsScreen, RowTable

FILES = tuple(
    FileResult(f"pebble · {recipe}", recipe, runtime, *figures)
    for recipe, runtime, *figures in (
        ("q8_0", "llamacpp", 5_256_096, 8.5, 0.00035, 4, 0, 3, 61, 412.0, 0.01),
        ("q4_k_m", "llamacpp", 2_967_456, 4.8, 0.0207, 4, 0, 2, 58, 501.3, 0.01),
        ("onnx-int4", "onnx", 3_960_350, 6.2, 0.0164, 3, 1, 1, 44, 288.4, 0.02),
    )
)
# Each prompt with what is expected, and three answers; None: one that failed.
ASKED = (
    ("What is the capital of France?", "Paris", *["The capital of France is Paris."] * 3),
    ("What is 17 + 25?", "42", "17 + 25 = 42", "17 + 25 = 42", "17 + 25 = 41"),
    (
        "Name the month that follows May.\nOne word is enough.",
        "June",
        "The month that follows May is June.",
        "After May comes July, as far as I remember the order of the months.",
        None,
    ),
    (
        "Tell me a story about a fox and a tailor in Rome",
        "",
        "Mia and the fox were brave friends. They walked to the tailor and asked for a coat.",
        "Mia and the fox were old friends. One day the tailor of Rome gave them a red coat.",
        "Mia and the fox were brave friends. They walked to Rome, where they bought a hat.",
    ),
)


def told(text: str | None, expected: str, speed: float) -> Told:
    if text is None:
        return Told(error="context_length_exceeded: the prompt has 1,060 tokens of 1,024")
    right = expected in text if expected else None
    return Told(text, None, "stop", len(text.split()) + 3, speed, 0.012, right)


def row(index: int, prompt: str, expected: str, *texts: str | None) -> PromptResult:
    answers = tuple(
        told(text, expected, file.decode_tps or 0.0)
        for text, file in zip(texts, FILES, strict=False)
    )
    first = texts[0] or ""
    places = tuple(
        None if text is None or text == first else equal_from_start(first, text)
        for text in texts[1 : len(answers)]
    )
    parts = tuple(None if at is None else len(first[:at].split()) for at in places)
    wanted = (expected,) if expected else ()
    return PromptResult(index, str(index), prompt, answers, parts, places, wanted)


@pytest.fixture
def found() -> Results:
    rows = tuple(row(n, *asked) for n, asked in enumerate(ASKED, 1))
    pairs = tuple(pair_of(rows, number, "tokens") for number in (1, 2))
    return Results("questions.jsonl", FILES, pairs, rows, max_tokens=256, made=0.0)


def ballot(found: Results, folder: Path) -> Ballot:
    """Sides are drawn by the folder's name."""
    return Ballot(found, folder / "votes" / "votes.jsonl")


async def results(pilot: Any, found: Results, folder: Path) -> None:
    votes = ballot(found, folder)
    for pair in votes.pairs:
        votes.say(pair, Sided.TIE if pair.row == 1 else Sided.RIGHT)
    entries = [
        ModelEntry(file.file, *file.label.split(" · "), Origin.BUILT, Path(file.file))
        for file in FILES
    ]
    screen = ComparePromptsScreen(entries)
    await pilot.app.push_screen(screen)
    await pilot.pause()
    screen.results = replace(found, votes=votes.count())
    screen.show_figures()
    screen.query_one(RowTable).fill(screen.results)
    screen._offer()
    screen.query_one(RowTable).focus()


async def answers(pilot: Any, found: Results, folder: Path) -> None:
    """One parts late, one has failed."""
    await pilot.app.push_screen(AnswersScreen(found, 2))


async def blind(pilot: Any, found: Results, folder: Path) -> None:
    votes = ballot(found, folder)
    for pair in votes.pairs[:2]:
        votes.say(pair, Sided.LEFT)
    await pilot.app.push_screen(BlindScreen(votes))


@pytest.mark.parametrize("opened", [results, answers, blind])
def test_picture(bare, snap, found: Results, tmp_path: Path, opened):
    async def open_it(pilot: Any) -> None:
        await opened(pilot, found, tmp_path)
        await pilot.pause()

    assert snap(bare, terminal_size=(120, 40), run_before=open_it)
