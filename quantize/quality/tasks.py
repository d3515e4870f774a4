"""Graded questions: how many a built file answers exactly, and how many the float model."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quantize.errors import SourceError
from quantize.manifest import Quality
from runtimes.untrusted import parse_json

_MOST = 64 * 2**20  # bytes


@dataclass(frozen=True, slots=True)
class GradedQuestion:
    """One line of graded.jsonl: a conversation, and the only right answer to it."""

    task: str
    messages: list[dict[str, str]]
    answer: str
    max_tokens: int


def read_questions(path: Path) -> list[GradedQuestion]:
    """Parse graded.jsonl. Raises SourceError naming the line that is wrong."""
    questions = []
    try:
        if path.stat().st_size > _MOST:
            raise SourceError(f"{path} has more than {_MOST / 2**20:.0f} MiB of questions")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read as text: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = parse_json(line.encode())
            messages = [
                {"role": str(message["role"]), "content": str(message["content"])}
                for message in item["messages"]
            ]
            question = GradedQuestion(
                str(item["task"]), messages, str(item["answer"]), int(item["max_tokens"])
            )
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise SourceError(
                f"{path}, line {number}: want task, messages, answer, max_tokens ({error!r})"
            ) from error
        questions.append(question)
    if not questions:
        raise SourceError(f"{path} holds no questions")
    return questions


def grade(questions: Sequence[GradedQuestion], answers: Sequence[str]) -> Quality:
    """Exact match of the answer without the white space around it."""
    right: dict[str, list[bool]] = defaultdict(list)
    for question, answer in zip(questions, answers, strict=True):
        right[question.task].append(answer.strip() == question.answer.strip())
    correct = sum(map(sum, right.values()))
    return Quality(
        task_accuracy=correct / len(questions),
        questions=len(questions),
        tasks={task: sum(marks) / len(marks) for task, marks in sorted(right.items())},
    )
