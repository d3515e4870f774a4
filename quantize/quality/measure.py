"""Checks and measurements of one built file, each in a child process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quantize.errors import CheckError, ToolError
from quantize.manifest import Quality, Speed
from quantize.process import run_child
from quantize.quality.tasks import Question, as_arguments, grade

_ROWS = 16


def check_answers(path: Path, work: Path) -> str:
    """Load the file on its runtime and ask one question. Raises CheckError."""
    try:
        return str(
            run_child(
                "quantize.quality.built_child:ask",
                {"path": str(path)},
                what=f"loading {path.name} and asking it a question",
                work=work,
            )
        )
    except ToolError as error:
        raise CheckError(f"{error}\nNothing was published for it") from error


def float_accuracy(model: Path, questions: Sequence[Question], work: Path) -> Quality:
    """How many questions the original model answers."""
    answers = run_child(
        "quantize.quality.float_child:answer",
        {"model": str(model), "questions": as_arguments(questions)},
        what="asking the float model the graded questions",
        work=work,
        # Threads that wait by spinning stand in each other's way when the processor is shared.
        environment={"OMP_WAIT_POLICY": "PASSIVE"},
    )
    return grade(questions, answers)


def built_accuracy(path: Path, questions: Sequence[Question], work: Path) -> Quality:
    """How many questions a built file answers."""
    answers = run_child(
        "quantize.quality.built_child:answer",
        {"path": str(path), "questions": as_arguments(questions), "slots": _ROWS},
        what=f"asking {path.name} the graded questions",
        work=work,
    )
    return grade(questions, answers)


def built_speed(path: Path, work: Path) -> Speed:
    """Tokens per second of a built file."""
    return Speed(
        **run_child(
            "quantize.quality.built_child:speed",
            {"path": str(path)},
            what=f"measuring the speed of {path.name}",
            work=work,
        )
    )
