from __future__ import annotations

from pathlib import Path

import pytest

from quantize.errors import SourceError
from quantize.quality.text import GradedQuestion, grade, read_questions

_LINE = (
    '{"task": "t", "messages": [{"role": "user", "content": "q"}], "answer": "a", "max_tokens": 4}'
)


def test_questions_are_read(tmp_path: Path):
    path = tmp_path / "graded.jsonl"
    path.write_text(f"{_LINE}\n\n{_LINE}\n")
    assert (
        read_questions(path)
        == [GradedQuestion("t", [{"role": "user", "content": "q"}], "a", 4)] * 2
    )


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[]",
        '{"task": "t"}',
        _LINE.replace("4", '"x"'),
        _LINE.replace("4", "1e999"),
        "[" * 9000,
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str):
    path = tmp_path / "graded.jsonl"
    path.write_text(f"{_LINE}\n{bad}\n")
    with pytest.raises(SourceError, match="line 2"):
        read_questions(path)


def test_questions_that_are_no_text(tmp_path: Path):
    (tmp_path / "graded.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match="cannot be read as text"):
        read_questions(tmp_path / "graded.jsonl")
    with (tmp_path / "graded.jsonl").open("wb") as file:
        file.truncate(2**40)  # a hole
    with pytest.raises(SourceError, match="more than 64 MiB"):
        read_questions(tmp_path / "graded.jsonl")


def test_no_questions(tmp_path: Path):
    (tmp_path / "graded.jsonl").write_text("\n")
    with pytest.raises(SourceError, match="no questions"):
        read_questions(tmp_path / "graded.jsonl")


def test_answers_match_exactly_but_for_white_space():
    questions = [GradedQuestion(task, [], "Paris", 4) for task in ("b", "a", "a", "a")]
    quality = grade(questions, ["Paris", " Paris\n", "paris", "Paris."])
    assert quality.tasks == {"a": 1 / 3, "b": 1.0}
    assert (quality.task_accuracy, quality.questions) == (0.5, 4)
