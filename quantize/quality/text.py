"""Texts that files are measured on, cut into windows, and graded questions."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantize.arrays import Ints
from quantize.errors import SourceError, UsageError
from quantize.manifest import Quality
from quantize.options import DEFAULT_LIMIT
from runtimes.untrusted import parse_json

BUNDLED = Path(__file__).resolve().parents[1] / "data" / "evaluation.txt"
WINDOW = 512
_FEWEST = 32  # ids that a text must have
_MOST_SCORED = 1024  # of a window, whose logits are held together
_MOST = 2_000_000_000  # bytes
_CHARACTERS_PER_TOKEN = 16  # of a long text no more is tokenized than may be needed


@dataclass(frozen=True, slots=True)
class Text:
    """A text, what it is called in reports, and the checksum of its file."""

    name: str
    content: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Windows:
    """Pieces of a text. Logits after position p of a piece score its id p + 1, for every p from
    ``first`` on."""

    ids: tuple[tuple[int, ...], ...]
    first: int

    @property
    def targets(self) -> list[Ints]:
        """The ids of each piece that are scored."""
        return [np.array(ids[self.first + 1 :], np.int64) for ids in self.ids]

    @property
    def length(self) -> int:
        """Ids in the longest piece: the context that a runner needs."""
        return max(map(len, self.ids))

    @property
    def scored(self) -> int:
        """Ids that are scored, over all pieces."""
        return sum(len(ids) - 1 - self.first for ids in self.ids)


def read_text(path: Path | None, limit: int = DEFAULT_LIMIT) -> Text:
    """The text at ``path``, or the bundled one; no more of it than ``limit`` scored tokens need.

    Raises UsageError when there is none, or it is not UTF-8.
    """
    source = path or BUNDLED
    try:
        if source.stat().st_size > _MOST:
            raise UsageError(f"--measure-text {source} has more than {_MOST / 1e9:.0f} GB")
        data = source.read_bytes()
        content = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"--measure-text {source}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--measure-text {source} is not UTF-8 text (byte {error.start:,}); convert it first"
        ) from error
    most = (2 * limit + 2 * WINDOW) * _CHARACTERS_PER_TOKEN
    name = "bundled text" if path is None else source.name
    return Text(name, content[:most], hashlib.sha256(data).hexdigest())


def cut(
    ids: Sequence[int],
    context: int,
    bos: int | None,
    limit: int = DEFAULT_LIMIT,
    window: int = WINDOW,
) -> Windows:
    """Cut a text's ids for a model whose context is ``context``; at most ``limit`` are scored, of
    each piece of ``window`` ids its second half, or its last ids where that would be many.

    A text shorter than a window is one window. ``bos`` is the id that begins every piece, None
    where the tokenizer adds none. Raises UsageError for a text that is too short to say anything.
    """
    length = min(window, context, len(ids))
    if length < _FEWEST:
        raise UsageError(
            f"the text to measure with has {len(ids)} tokens and the model a context of {context};"
            f" at least {_FEWEST} are needed. Give a longer text with --measure-text"
        )
    first, left = max(length // 2, length - _MOST_SCORED), limit
    if window > WINDOW:  # a piece is whole: it is there for what its end has behind it
        first = max(first, length - 1 - limit)
    pieces = []
    for start in range(0, len(ids) - length + 1, length):
        take = min(length, first + 1 + left)
        piece = list(ids[start : start + take])
        if bos is not None:
            piece[0] = bos
        pieces.append(tuple(piece))
        left -= take - 1 - first
        if left == 0:
            break
    return Windows(tuple(pieces), first)


_MOST_QUESTIONS = 64 * 2**20  # bytes


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
        if path.stat().st_size > _MOST_QUESTIONS:
            raise SourceError(
                f"{path} has more than {_MOST_QUESTIONS / 2**20:.0f} MiB of questions"
            )
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
