"""Memory that this process has freed, and the C library keeps for it."""

import ctypes
import sys
from contextlib import suppress


def give_back() -> None:
    """Give the system what is free of it; glibc would keep whatever lies below something that is
    still in use. Other libraries do so by themselves."""
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
