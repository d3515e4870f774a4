"""Entry points of the commands `ingot` and `quantize`; also `python -m ingot`."""

import sys

from app.__main__ import main

__all__ = ["main", "quantize"]


def quantize() -> int:
    """Run `quantize`; the exit code."""
    from quantize.__main__ import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
