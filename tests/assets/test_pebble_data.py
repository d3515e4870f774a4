"""Held-out questions stay out of the training text."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import pytest
from pebble_data.base import Split
from pebble_data.mixture import GRADED, TASKS, WEIGHTS, conversations, held_out

PEBBLE = Path(__file__).resolve().parents[2] / "assets" / "pebble"
TRAINING_SAMPLES = 20_000


def test_no_graded_question_occurs_in_training() -> None:
    """Compared with all that was said up to an answer, so later questions count too."""
    drawn = islice(conversations(random.Random(1), dict(WEIGHTS)), TRAINING_SAMPLES)
    trained = set()
    last_turns = set()
    for messages in drawn:
        said = tuple(m.content for m in messages if m.role != "system")
        for i in range(0, len(said), 2):
            trained.add(said[: i + 1])
            last_turns.add(said[i])
    for line in (PEBBLE / "graded.jsonl").read_text().splitlines():
        row = json.loads(line)
        asked = tuple(m["content"] for m in row["messages"])
        assert asked not in trained, asked
        # 'What is my name?' is of course asked in training: what differs is what was told before.
        if row["task"] not in ("remember", "forgot"):
            assert asked[-1] not in last_turns, asked


@pytest.mark.parametrize("task", list(TASKS))
def test_generators_are_deterministic(task: str) -> None:
    first = [TASKS[task](random.Random(7), split) for split in Split]
    assert first == [TASKS[task](random.Random(7), split) for split in Split]
    assert all(sample.messages[-1].role == "assistant" and sample.answer for sample in first)


def test_held_out_sets_do_not_overlap() -> None:
    dev = {sample.question for sample in held_out(Split.DEV, 20, 0)}
    test = held_out(Split.TEST, 20, 0)
    assert not dev & {sample.question for sample in test}
    assert {sample.task for sample in test} == set(GRADED)


def test_graded_file_is_what_the_generators_write(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from pebble_train.grading import write_calibration, write_evaluation, write_graded

    for name, write in (("evaluation", write_evaluation), ("calibration", write_calibration)):
        path = tmp_path / f"{name}.txt"
        write(path)
        assert path.read_bytes() == (PEBBLE / path.name).read_bytes()
    write_graded(tmp_path / "graded.jsonl", (PEBBLE / "tokenizer.model").read_bytes())
    written = (tmp_path / "graded.jsonl").read_text().splitlines()
    assert written == (PEBBLE / "graded.jsonl").read_text().splitlines()
