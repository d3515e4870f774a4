"""How many rows run together when nobody said."""

from app.models.planning import Choice
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import largest_slots
from runtimes.models.modelfile import ModelFile
from runtimes.settings import RunnerSettings

MOST = 16
# What the model may take of the free memory: prefixes that are kept for later, and whatever else
# the machine does, need some too.
_SHARE = 0.75


def slots_for(choice: Choice, rows: int, *, fixed: bool, engines: int = 1) -> int:
    """For each of ``engines``: as many as were asked for (``fixed``); else as many as planned, or
    as fit, but together no more than rows."""
    if fixed:
        return choice.settings.slots
    rows = -(-rows // engines)
    if choice.planned:
        return max(1, min(choice.settings.slots, rows))
    return default_slots(choice.file, choice.settings, rows, free_memory() // engines)


def default_slots(model: ModelFile, settings: RunnerSettings, rows: int, free_bytes: int) -> int:
    """As many slots as there are rows, up to 16, as long as all of it fits ``free_bytes``."""
    return max(1, largest_slots(model, settings, int(free_bytes * _SHARE), min(MOST, rows)))


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    return memory_now()[1]
