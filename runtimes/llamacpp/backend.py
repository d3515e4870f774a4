"""llama.cpp, as the rest of Ingot sees it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runtimes.backend import Backend, Device
from runtimes.errors import ModelError
from runtimes.machine.processes import advised

if TYPE_CHECKING:
    from runtimes.backend import MemoryEstimate, StepCost
    from runtimes.models.modelfile import ModelFile
    from runtimes.runner import Runner, Tokenizer
    from runtimes.settings import RunnerSettings


class LlamaBackend(Backend):
    """Runs GGUF files."""

    def detect(self, path: Path) -> ModelFile | None:
        """Any file, whatever it is called."""
        from runtimes.llamacpp.modelfile import read_gguf

        return None if path.is_dir() else read_gguf(path)

    def peek(self, start: bytes, path: Path, nbytes: int) -> ModelFile | None:
        """From the part of the header before its tokenizer."""
        from runtimes.llamacpp.modelfile import peek

        try:
            return peek(start, path, nbytes)
        except ModelError:
            return None

    def estimate(self, model: ModelFile, settings: RunnerSettings) -> MemoryEstimate:
        """From the header alone."""
        from runtimes.llamacpp.memory import estimate

        return estimate(model, settings)

    def step_cost(self, model: ModelFile) -> StepCost | None:
        """From the header alone."""
        from runtimes.llamacpp.memory import step_cost

        return step_cost(model)

    def tokenizer(self, model: ModelFile) -> Tokenizer:
        """The one in the file."""
        from runtimes.llamacpp.tokenizer import LlamaTokenizer

        return LlamaTokenizer.load(model.path)

    def open(self, model: ModelFile, settings: RunnerSettings) -> Runner:
        """The model with a context."""
        if model.encodes:
            from runtimes.llamacpp.encoder import LlamaEncoder

            return LlamaEncoder(model, settings)
        from runtimes.llamacpp.runner import LlamaRunner

        return LlamaRunner(model, settings)

    def adapter_problem(self, model: ModelFile, path: Path) -> str | None:
        """By what its header says."""
        from runtimes.models.gguf import read_header

        try:
            said = read_header(path).metadata
        except ModelError as error:
            return str(error)
        if said.get("general.type") != "adapter" or said.get("adapter.type") != "lora":
            return f"{path} is a GGUF file, but no LoRA adapter"
        if (of := said.get("general.architecture")) != model.architecture:
            return f"{path} is for {of} models, and {model.path.name} is a {model.architecture}"
        return None

    def kernels(self) -> list[str]:
        """The processor's features that it has kernels for."""
        from runtimes.llamacpp.native import library

        features = library().llama_print_system_info().decode().replace(":", "|").split("|")
        pairs = (feature.partition("=") for feature in features)
        return [name.strip() for name, _, value in pairs if value.strip() == "1"]

    def devices(self) -> tuple[Device, ...]:
        """List the devices of the GPUs that the library was built for."""
        from runtimes.llamacpp.native import devices

        return devices()

    def fitted(self, model: ModelFile, settings: RunnerSettings) -> RunnerSettings:
        """Layers, where nobody has said how many, and the faster attention, if nobody has said
        which. Raises RequestError for one that keys and values cannot have."""
        from runtimes.llamacpp.context import fitted, with_attention

        return with_attention(fitted(model, settings))

    def allows_gpu(self, settings: RunnerSettings) -> bool:
        """Say whether layers may be offloaded to a GPU."""
        return settings.gpu_layers != 0 and settings.device != "cpu"

    def on_gpu(self, settings: RunnerSettings) -> bool:
        """Say whether the library offloads to a GPU here."""
        from runtimes.llamacpp.native import offloads

        return offloads(settings)


_KNOWS = frozenset(
    "gpu_layers extra_buffers unified_kv kv_type kv_tokens context_shift device_sampling"
    " flash_attention rope".split()
)
_INSTALL = advised("runtimes.llamacpp.build")
BACKEND = LlamaBackend(
    name="llamacpp",
    label="llama.cpp",
    format="gguf",
    package="llama_cpp",
    libraries="lib",
    distributions=("llama_cpp_python",),
    install=_INSTALL,
    reinstall=f"{_INSTALL} --force",
    selftest=Path(__file__).parent / "selftest" / "model.gguf",
    suffixes=(".gguf",),
    knows=_KNOWS,
    embeds=True,
)
