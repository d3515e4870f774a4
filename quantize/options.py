"""Options of one run of `quantize`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from quantize.manifest import FileEntry
from quantize.recipes import Recipe

DEFAULT_LIMIT = 4096  # scored tokens: more than the bundled text gives with any vocabulary

Target = Literal["cpu", "cuda", "webgpu"]  # as onnxruntime-genai's builder calls them


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Source of the model. Nothing that can run foreign code is allowed by default."""

    model: str
    revision: str | None = None
    lora: str | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False
    allow_requantize: bool = False


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Options of measuring."""

    enabled: bool = True
    text: Path | None = None  # None: the bundled text
    limit: int = DEFAULT_LIMIT  # the most tokens scored
    gates: bool = True
    again: bool = False  # measure what is measured already once more


@dataclass(frozen=True, slots=True)
class Options:
    """Files to build, and how far to go."""

    source: SourceOptions
    recipes: tuple[Recipe, ...]
    out: Path | None = None  # None: `<model>-built` beside the source
    measure: MeasureOptions = field(default_factory=MeasureOptions)
    allow_token_mismatch: bool = False
    imatrix: Path | None = None  # a text to compute an importance matrix from, or a ready matrix
    gptq: bool = False  # errors of rounding are made up for
    # From regular expressions over tensor names to llama.cpp types.
    overrides: Mapping[str, str] = field(default_factory=dict)
    target: Target = "cpu"
    push: str | None = None
    as_json: bool = False
    # By recipe: files of targets that a manifest lists, to be built exactly again.
    allocations: Mapping[str, FileEntry] = field(default_factory=dict)
    fresh: bool = False  # build again what is already there
