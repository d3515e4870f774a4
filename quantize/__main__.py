"""Where the `quantize` command begins; also `python -m quantize`."""

import sys

_INTERRUPTED = 130


def main() -> int:
    """Import the command line and run it; the exit code. Ctrl-C while it is imported is no defect
    either."""
    try:
        from quantize.cli import main as run
    except KeyboardInterrupt:
        return _INTERRUPTED
    return run()


if __name__ == "__main__":
    sys.exit(main())
