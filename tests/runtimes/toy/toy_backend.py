"""A third runtime, which nothing in Ingot names: which word follows which is the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runtimes.backend import Backend, MemoryEstimate, StepCost
from runtimes.errors import ModelError
from runtimes.models.modelfile import ModelFile
from runtimes.runner import Capabilities, KvSlots, Logits, SavedKv, StepRows
from runtimes.settings import RunnerSettings

END = "\n"  # every line is a text that was seen


class Words:
    bos_token, eos_token = "", END

    def __init__(self, path: Path) -> None:
        self.lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        self.words = sorted({END}.union(*self.lines))
        if len(self.words) == 1:
            raise ModelError(f"{path} has no words")
        self.vocab_size = len(self.words)
        self.eos_ids = frozenset({self.words.index(END)})

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        return [self.words.index(word) for word in text.split() if word in self.words]

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in self.eos_ids else f" {self.words[token]}".encode()


class Slots(KvSlots):
    def __init__(self, count: int, context: int) -> None:
        super().__init__(count, context)
        self.held: list[list[int]] = [[] for _ in range(count)]  # the "keys and values"

    def copy(self, source: int, target: int, length: int) -> None:
        self.held[target] = self.held[source][:length]

    def trim(self, slot: int, length: int) -> None:
        del self.held[slot][length:]

    def swap(self, first: int, second: int) -> None:
        self.held[first], self.held[second] = self.held[second], self.held[first]

    def save(self, slot: int) -> bytes:
        return np.array(self.held[slot], np.int64).tobytes()

    def load(self, slot: int, data: SavedKv, length: int) -> None:
        self.held[slot] = np.frombuffer(data, np.int64).tolist()


class Bigrams:
    adapters = None
    graphs_reused = None

    def __init__(self, model: ModelFile, settings: RunnerSettings) -> None:
        self.tokenizer = Words(model.path)
        size = self.tokenizer.vocab_size
        self.capabilities = Capabilities(
            runtime=BACKEND.name,
            slots=settings.slots,
            context=settings.context or model.context_length,
            batch=settings.batch,
            vocab_size=size,
            mixed_batch=True,
            kv_bytes_per_token=8,
        )
        self.kv = Slots(settings.slots, self.capabilities.context)
        self._logits = np.zeros((size, size), np.float32)
        for line in self.tokenizer.lines:
            ids = self.tokenizer.encode(" ".join(line))
            for one, following in zip(ids, [*ids[1:], *self.tokenizer.eos_ids], strict=True):
                self._logits[one, following] += 10

    def execute(self, plan: StepRows) -> Logits:
        for row in plan:
            self.kv.held[row.slot][row.position :] = row.tokens
        return self._logits[[row.tokens[-1] for row in plan if row.logits]]

    def score(self, tokens: Sequence[int], first: int = 0) -> Logits:
        self.kv.trim(0, 0)
        return self._logits[list(tokens)]

    def close(self) -> None:
        self.kv.held.clear()


class ToyBackend(Backend):
    def detect(self, path: Path) -> ModelFile | None:
        if path.suffix not in self.suffixes:
            return None
        words = Words(path)
        return ModelFile(
            path=path,
            runtime=self.name,
            name=path.stem,
            architecture="bigrams",
            quantization="none",
            nbytes=path.stat().st_size,
            context_length=1024,
            layers=1,
            heads=1,
            kv_heads=1,
            head_dim=1,
            vocab_size=words.vocab_size,
            sliding_window=None,
            chat_template=None,
        )

    def estimate(self, model: ModelFile, settings: RunnerSettings) -> MemoryEstimate:
        context = settings.context or model.context_length
        return MemoryEstimate(4 * model.vocab_size**2, 8 * settings.slots * context)

    def step_cost(self, model: ModelFile) -> StepCost:
        return StepCost(4 * model.vocab_size**2, 1, model.vocab_size)

    def tokenizer(self, model: ModelFile) -> Words:
        return Words(model.path)

    def open(self, model: ModelFile, settings: RunnerSettings) -> Bigrams:
        return Bigrams(model, settings)

    def kernels(self) -> list[str]:
        return ["numpy"]

    def import_library(self) -> None:
        pass


BACKEND = ToyBackend(
    name="toy",
    label="Toy",
    format="toy",
    package=__name__,
    libraries="",
    distributions=(),
    install="toys",
    reinstall="toys",
    selftest=Path(__file__).with_name("tiny.toy"),
    suffixes=(".toy",),
)
