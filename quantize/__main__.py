"""Entry point of the `quantize` command; also `python -m quantize`."""

import os
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
    # Python puts the current folder first for -m: what lies there is not ours, unless this does.
    if not (sys.flags.safe_path or __file__.startswith(os.path.join(sys.path[0], "quantize", ""))):
        del sys.path[0]
    sys.exit(main())
