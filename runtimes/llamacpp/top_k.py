"""The likeliest tokens of each row, found where llama.cpp computes the logits.

On a GPU that saves copying every row's whole vocabulary to the processor and going through it
there. llama.cpp's interface (``llama_set_sampler``) is experimental; what is used of it is one
top-k for each sequence. The draw stays Ingot's: its seeds and results do not depend on this.
"""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.llamacpp.native import library
from runtimes.runner import StepLogits, StepRows, TopKLogits

logger = logging.getLogger(__name__)

WIDTH = 64  # tokens of a row: more than what top-k is set to in practice
# llama.cpp plans its memory anew when samplers come or go. Rows that need all logits switch them
# off at once; so many steps without any such row switch them on again.
_PATIENCE = 32


class TopKSamplers:
    """One top-k a slot, while no row needs more; ``on`` says whether llama.cpp has them now."""

    def __init__(self, context: Any, slots: int, vocabulary: int) -> None:
        self._lib = library()
        self._context = context
        self._slots, self._vocabulary = slots, vocabulary
        self._able = vocabulary > WIDTH
        self.on = False
        self._streak = _PATIENCE
        self._chains: list[Any] = []

    def ready(self, rows: StepRows) -> None:
        """Set llama.cpp up for a step of these rows."""
        # llama.cpp gives each sequence one choice a step.
        wanted = [row.top_k_needed if row.logits == 1 else 0 for row in rows if row.logits]
        if not (self._able and wanted):
            return
        # Less than the whole width: a list that is cut among equal logits is cut below them.
        if all(0 < needed < WIDTH for needed in wanted):
            self._streak += 1
            if not self.on and self._streak > _PATIENCE:
                self._switch_on()
        else:
            self.off()

    def off(self) -> None:
        """Have llama.cpp hand out full logits from the next step on."""
        self._streak = 0
        if self.on:
            self.on = False
            for slot in range(self._slots):
                self._lib.llama_set_sampler(self._context, slot, None)

    def read(self, outputs: int) -> StepLogits:
        """Return the last step's candidates, a row for each output; views of llama.cpp's buffers.

        Full logits when the device turns out to have no top-k; it is not asked again then.
        """
        lib, first = self._lib, -outputs  # counted from the last row
        found = lib.llama_get_sampled_logits_ith(self._context, first)
        if lib.llama_get_sampled_candidates_count_ith(self._context, first) != WIDTH:
            # It has passed the logits on as they are.
            logger.info("llama.cpp cannot look for the likeliest tokens on this device")
            self._able = False
            values = self._rows(found, outputs, self._vocabulary).copy()
            self.off()
            return values
        ids = lib.llama_get_sampled_candidates_ith(self._context, first)
        return TopKLogits(self._rows(ids, outputs, WIDTH), self._rows(found, outputs, WIDTH))

    def close(self) -> None:
        """Free the samplers; only after the context has gone, or when they are off."""
        for chain in self._chains:
            self._lib.llama_sampler_free(chain)
        self._chains = []

    def _rows(self, pointer: Any, outputs: int, width: int) -> npt.NDArray[Any]:
        """Rows lie a vocabulary apart, whatever their width."""
        flat: npt.NDArray[Any] = np.ctypeslib.as_array(
            pointer, ((outputs - 1) * self._vocabulary + width,)
        )
        stride = self._vocabulary * flat.itemsize
        return np.lib.stride_tricks.as_strided(flat, (outputs, width), (stride, flat.itemsize))

    def _switch_on(self) -> None:
        # A chain can be given to a context once. Those of before are out of use for a step or more.
        self.close()
        lib, self.on = self._lib, True
        for slot in range(self._slots):
            chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(WIDTH))
            self._chains.append(chain)
            if not lib.llama_set_sampler(self._context, slot, chain):
                logger.info("llama.cpp cannot choose tokens on this device")
                self._able = False
                self.off()
                return
