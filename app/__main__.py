"""Entry point of the `ingot` command; also `python -m app`."""

import gc
import os
import sys

_INTERRUPTED = 130  # app.exitcodes has it too, behind imports that a Ctrl-C may end


def main() -> int:
    """Import the command line and run it; the exit code. Ctrl-C while it is imported is no defect
    either."""
    gc.disable()  # nothing of what is imported is garbage, and looking for some takes a tenth
    try:
        from app.cli.main import main as run
    except KeyboardInterrupt:
        return _INTERRUPTED
    gc.enable()
    return run()


if __name__ == "__main__":
    # Python puts the current folder first for -m: what lies there is not ours, unless this does.
    if not (sys.flags.safe_path or __file__.startswith(os.path.join(sys.path[0], "app", ""))):
        del sys.path[0]
    sys.exit(main())
