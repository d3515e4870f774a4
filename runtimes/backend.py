"""Interface and names of a runtime; ``models.registry`` says which ones there are.

Each has one instance, ``BACKEND`` in the ``backend`` module of its folder; what runs a model is in
``runner`` there. Neither this module nor those import anything but the standard library until a
method needs it: what is asked most often is only whether a runtime is installed.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from runtimes.models.modelfile import ModelFile, RuntimeName
    from runtimes.runner import Runner, Tokenizer
    from runtimes.settings import RunnerSettings


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes."""

    weights: int
    kv: int
    compute: int = 0  # activations and logits
    overhead: int = 0  # the tokenizer and the runtime
    # Each checkpoint of a prompt; not in the total: cached prefixes come on top (``prefix_room``).
    checkpoint: int = 0

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.kv + self.compute + self.overhead

    def to_json(self) -> dict[str, int]:
        """The parts and their sum."""
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True, slots=True)
class StepCost:
    """Bytes of weights that a decode step reads, however many rows it has, and the multiplications
    of a token: in the layers, and for its logits, which of a prompt only the last token needs."""

    nbytes: int
    layers: int
    output: int


@dataclass(frozen=True, slots=True)
class Device:
    """Device that a runtime can compute on beside the processor."""

    name: str  # as ``RunnerSettings.device`` has it
    description: str
    memory_total: int | None = None  # bytes; None where it does not tell
    memory_free: int | None = None
    auto: bool = True  # whether ``auto`` computes there too


@dataclass(frozen=True, slots=True)
class Backend(ABC):
    """One runtime."""

    name: RuntimeName
    label: str  # for people
    format: str  # of the files that it runs, as `quantize` and the library call it
    package: str  # to import
    libraries: str  # the folder in the package whose files are its native libraries
    distributions: tuple[str, ...]  # those that may provide the package, as their folders are named
    install: str  # how, as a command
    reinstall: str  # how a build that does not work is replaced
    # A tiny model; logits.npy beside it has what ``runtimes.machine.selftest_child`` must find.
    selftest: Path
    # Where a model is a single file: how its name ends.
    suffixes: tuple[str, ...] = ()
    # Where it is a folder: the names of files in it, as patterns, the first the one to look for.
    folder: tuple[str, ...] = ()
    # The fields of RunnerSettings that mean something to it, of those that do not to every runtime.
    knows: frozenset[str] = frozenset()
    embeds: bool = False  # whether its files give embeddings
    # Whether steps read copies of the weights, and the file itself only while it is loaded.
    copies_weights: bool = False

    @abstractmethod
    def detect(self, path: Path) -> ModelFile | None:
        """Read the header of the model at ``path``, which exists; None for another runtime's.

        Raises ModelError for one that is damaged.
        """

    def peek(self, start: bytes, path: Path, nbytes: int) -> ModelFile | None:
        """Read the header of a remote file of ``nbytes`` from its first bytes;
        None when it does not, or this runtime's files never do."""
        return None

    @abstractmethod
    def estimate(self, model: ModelFile, settings: RunnerSettings) -> MemoryEstimate:
        """Estimate the memory of ``model``; ``settings`` has a context, and a batch that fits
        it."""

    @abstractmethod
    def step_cost(self, model: ModelFile) -> StepCost | None:
        """From the tensors' sizes; None for a mixture, whose steps read what their tokens need.
        Raises ModelError for a file that cannot be read."""

    @abstractmethod
    def tokenizer(self, model: ModelFile) -> Tokenizer:
        """The tokenizer without the weights; raises ModelError."""

    @abstractmethod
    def open(self, model: ModelFile, settings: RunnerSettings) -> Runner:
        """Load the model. Raises ModelError, OutOfMemoryError or RuntimeMissingError."""

    def adapter_problem(self, model: ModelFile, path: Path) -> str | None:
        """Why ``path`` is no adapter of ``model``, where that is seen without loading either."""
        return None

    @abstractmethod
    def kernels(self) -> list[str]:
        """The instruction sets or devices that the library was built for. Imports it."""

    def devices(self) -> tuple[Device, ...]:
        """List the accelerators that this build can use here. Imports the library."""
        return ()

    def fitted(self, model: ModelFile, settings: RunnerSettings) -> RunnerSettings:
        """``settings``, which have a context, with what the devices have room for now."""
        return settings

    def import_library(self) -> None:
        """Import all that a runner needs, without loading a model."""
        self.kernels()
        importlib.import_module(f"{type(self).__module__.rpartition('.')[0]}.runner")

    def allows_gpu(self, settings: RunnerSettings) -> bool:
        """Whether these settings leave a GPU to it, if it has one."""
        return settings.device != "cpu"

    def on_gpu(self, settings: RunnerSettings) -> bool:
        """Whether layers go to a GPU with these settings. May import the native library."""
        return False
