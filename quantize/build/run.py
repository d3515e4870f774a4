"""What every step of one run needs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from quantize.build.workspace import Workspace
from quantize.children.process import run_child
from quantize.lora.adapter import merged_source
from quantize.manifest import FileEntry, ModelOrigin
from quantize.options import Options
from quantize.progress.console import Reporter
from quantize.quality.fidelity import FloatReference
from quantize.quality.tasks import GradedQuestion
from quantize.quality.tokens import Reference, read_reference
from quantize.recipes.recipe import Recipe
from quantize.source import SourceModel
from quantize.stages.stages import Stages


@dataclass(slots=True)
class Measuring:
    """How the files of one run are measured."""

    text: Mapping[str, Any]
    # Everything besides a file that decides its figures: float model, text, questions, programs,
    # machine.
    key: str
    questions: Sequence[GradedQuestion] = ()
    # Once a file is measured: what the float model made of the text, and what could be asked.
    reference: FloatReference | None = None
    asked: Sequence[GradedQuestion] = ()


@dataclass
class Run:
    """One run, from the moment at which its source is known and its output folder is held.

    ``base`` is the model as it was found, without an adapter. ``fingerprint`` and ``inputs``
    identify what is built from, an adapter included, in the manifest and in the keys of stages.
    """

    options: Options
    base: SourceModel
    fingerprint: ModelOrigin
    inputs: dict[str, Any]
    space: Workspace
    stages: Stages
    progress: Reporter
    plan: Measuring | None = None  # None with --no-measure

    def show(self, notes: Iterable[str]) -> None:
        """Tell the user."""
        for note in notes:
            self.progress.note(note)

    @cached_property
    def source(self) -> SourceModel:
        """What is built from; an adapter is merged when this is first needed."""
        lora = self.options.source.lora
        if lora is None:
            return self.base
        made = self.fingerprint, self.stages, self.space.work, self.progress
        return merged_source(self.base, lora, *made)

    @cached_property
    def reference(self) -> Reference:
        """What the original tokenizer makes of the test lines; made when it is first needed."""
        with self.progress.stage("reading the original tokenizer"):
            trust = self.source.trust_remote_code
            call = partial(read_reference, self.source.folder, trust_remote_code=trust)
            what = "loading the original tokenizer"
            return run_child(call, what, self.space.work, self.progress, torch=True)


@dataclass(slots=True)
class BuildJob:
    """One file of a run: its recipe and the key of its build. ``entry`` is the file in the output
    folder once it is there with that key."""

    recipe: Recipe
    key: str
    entry: FileEntry | None = None
