"""What crosses between the processor and a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


class Crossings:
    """Counts the bytes that bindings carry to and from a device, and their names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import onnxruntime as ort

        self.given: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        self.there: list[range] = []  # addresses of what is on the device
        self._outputs: dict[int, set[str]] = {}
        bind_input, bind_output = ort.IOBinding.bind_input, ort.IOBinding.bind_output
        run = ort.InferenceSession.run_with_iobinding

        def given(
            one: Any, name: str, where: str, index: int, kind: Any, shape: Any, at: int
        ) -> None:
            if not any(at in part for part in self.there):
                assert where == "cpu"
                self._count(self.given, name, int(np.prod(shape)) * np.dtype(kind).itemsize)
            bind_input(one, name, where, index, kind, shape, at)

        def taken(one: Any, name: str, where: str = "cpu", *args: Any) -> None:
            if where == "cpu" and not args:  # else it is allocated, or lies, there
                self._outputs.setdefault(id(one), set()).add(name)
            bind_output(one, name, where, *args)

        def ran(session: Any, one: Any) -> None:
            run(session, one)
            names = self._outputs.pop(id(one), set())
            if names:
                found = [value.tensor_size_in_bytes() for value in one.get_outputs()]
                assert len(found) == len(names)
                self._count(self.taken, " and ".join(sorted(names)), sum(found))

        monkeypatch.setattr(ort.IOBinding, "bind_input", given)
        monkeypatch.setattr(ort.IOBinding, "bind_output", taken)
        monkeypatch.setattr(ort.InferenceSession, "run_with_iobinding", ran)

    @staticmethod
    def _count(counts: dict[str, int], name: str, nbytes: int) -> None:
        counts[name] = counts.get(name, 0) + nbytes

    def clear(self) -> None:
        self.given.clear()
        self.taken.clear()
