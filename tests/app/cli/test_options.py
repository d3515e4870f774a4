"""Option groups: flags of the command line become dataclasses."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from app.batch.input.prompting import RowTemplate
from app.cli.options import with_groups
from app.options import ConstraintOptions, ModelOptions, SamplingOptions
from app.prompts import read_text
from runtimes.errors import RequestError
from runtimes.request import SamplingParams

seen: list[tuple[str, SamplingOptions, ModelOptions, bool]] = []
app = typer.Typer()


@app.command()
@with_groups
def command(
    model: str, sampling: SamplingOptions, options: ModelOptions, flag: bool = False
) -> None:
    """Records what it gets."""
    seen.append((model, sampling, options, flag))


def parse(*arguments: str) -> tuple[str, SamplingOptions, ModelOptions, bool]:
    result = CliRunner().invoke(app, ["m", *arguments])
    assert result.exit_code == 0, result.output
    return seen.pop()


def test_every_flag() -> None:
    flags = (
        "--max-tokens 7 --temperature 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 "
        "--repetition-penalty 1.1 --presence-penalty 0.2 --frequency-penalty 0.3 --seed 5 "
        "--stop a --stop b --recipe q8_0 --context 99 --threads 2 --flag"
    )
    model, sampling, options, flag = parse(*flags.split())
    assert (model, flag) == ("m", True)
    assert sampling.params() == SamplingParams(0.5, 0.9, 4, 0.1, 7, 1.1, 0.2, 0.3, 5, ("a", "b"))
    assert options == ModelOptions(recipe="q8_0", context=99, threads=2)


def test_files_without_end_are_refused() -> None:
    for options in (
        ConstraintOptions(grammar=Path("/dev/zero")),
        ConstraintOptions(json_schema="/dev/zero"),
    ):
        with pytest.raises(RequestError, match="/dev/zero cannot be read: it has more than"):
            options.constraint()
    with pytest.raises(RequestError, match="it has more than"):
        RowTemplate.load(Path("/dev/zero"))
    with Path("/dev/zero").open("rb") as stream, pytest.raises(RequestError, match="more than"):
        read_text(stream, lambda _: None)
