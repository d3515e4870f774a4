"""LoRA adapters beside a model in llama.cpp, which applies them to a whole context at a time."""

import ctypes
from itertools import groupby
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.llamacpp.native import library, recent_errors
from runtimes.runner import StepRow


class LlamaAdapters:
    """Implements ``runtimes.runner.AdapterSlots``. Their memory goes with the model's."""

    def __init__(self, model: Any, context: Any) -> None:
        self._lib = library()
        self._model, self._context = model, context
        self._loaded: dict[str, Any] = {}
        self._used: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """See ``AdapterSlots.names``."""
        return frozenset(self._loaded)

    def load(self, name: str, path: Path) -> None:
        """See ``AdapterSlots.load``."""
        recent_errors()
        adapter = self._lib.llama_adapter_lora_init(self._model, str(path).encode())
        if not adapter:
            raise ModelError(
                f"llama.cpp cannot load the adapter {path}: {recent_errors() or 'no reason given'}"
            )
        if self._lib.llama_adapter_get_alora_n_invocation_tokens(adapter):
            self._lib.llama_adapter_lora_free(adapter)
            raise ModelError(f"{path} is an activated LoRA (aLoRA), which is not supported")
        self._loaded[name] = adapter

    def unload(self, name: str) -> None:
        """See ``AdapterSlots.unload``."""
        self.use(None)  # another one may come to lie where this one was
        self._lib.llama_adapter_lora_free(self._loaded.pop(name))

    def use(self, name: str | None) -> None:
        """Steps are with this adapter from now on. To change it costs a plan of llama.cpp's work
        memory."""
        if name == self._used:
            return
        if name is None:
            self._lib.llama_set_adapters_lora(self._context, None, 0, None)
        else:
            one = (self._lib.llama_adapter_lora_p_ctypes * 1)(self._loaded[name])
            self._lib.llama_set_adapters_lora(self._context, one, 1, (ctypes.c_float * 1)(1.0))
        self._used = name

    def groups(self, rows: tuple[StepRow, ...]) -> list[tuple[StepRow, ...]]:
        """Rows of one adapter together, in their order; the group that needs no change first."""
        if all(row.adapter == self._used for row in rows):
            return [rows]
        by_adapter = sorted(rows, key=lambda row: (row.adapter != self._used, row.adapter or ""))
        return [tuple(group) for _, group in groupby(by_adapter, key=lambda row: row.adapter)]
