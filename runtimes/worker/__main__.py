"""`python -P -m runtimes.worker [--forget]`: the safer settings that are remembered."""

import os
import sys

# Python puts the current folder first for -m: what lies there is not ours, unless this does.
if __name__ == "__main__" and not (
    sys.flags.safe_path or __file__.startswith(os.path.join(sys.path[0], "runtimes", ""))
):
    del sys.path[0]

import argparse

from runtimes.machine.processes import advised
from runtimes.untrusted import visible
from runtimes.worker.recovery import forget, limit_lines


def main() -> None:
    """Show them, and forget them if told to."""
    parser = argparse.ArgumentParser(prog=advised("runtimes.worker"), description=__doc__)
    parser.add_argument("--forget", action="store_true", help="load with full settings again")
    arguments = parser.parse_args()
    lines = limit_lines()
    if arguments.forget:
        forget()
    sys.stdout.write("".join(f"{visible(line)}\n" for line in lines) or "nothing is remembered\n")


if __name__ == "__main__":
    main()
