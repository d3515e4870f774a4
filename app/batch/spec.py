"""All that is said of a batch job: by the command line, by a form, or by an earlier run."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.batch.options import InputOptions, OutputOptions, RunningOptions, SampleOptions
from app.options import ConstraintOptions, ModelOptions, PlanOptions, SamplingOptions

# What a try answers.
TEST_ROWS = 3
TEST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Relative paths are relative to the folder that the job runs in; ``input`` and ``output`` are
    - for standard input and output. ``test`` is a try with a few rows."""

    input: str
    output: str | None = None
    model: str | None = None
    system: str | None = None
    raw: bool = False
    slots: int | None = None
    reproducible: bool = False
    test: bool = False
    force: bool = False
    fresh: bool = False
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    constraints: ConstraintOptions = field(default_factory=ConstraintOptions)
    samples: SampleOptions = field(default_factory=SampleOptions)
    rows: InputOptions = field(default_factory=InputOptions)
    out: OutputOptions = field(default_factory=OutputOptions)
    running: RunningOptions = field(default_factory=RunningOptions)
    options: ModelOptions = field(default_factory=ModelOptions)
    engine: PlanOptions = field(default_factory=PlanOptions)
