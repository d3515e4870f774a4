"""Exit codes of commands, and the code of each error."""

import errno
from enum import IntEnum

from runtimes.errors import IngotError


class ExitCode(IntEnum):
    """Exit codes of every command; scripts may rely on them."""

    DONE = 0
    ROWS_FAILED = 1
    USAGE = 2
    MODEL = 3
    RESOURCES = 4  # out of memory, or the disk is full
    INTERNAL = 70  # a defect of Ingot, not of what it was asked (EX_SOFTWARE)
    INTERRUPTED = 130
    BROKEN_PIPE = 141  # what a shell reports for a program that the reader of its output ended


_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM})


def exit_code_for(error: BaseException) -> int:
    """The exit code that belongs to an error which ended a command."""
    match error:
        case IngotError():
            return error.exit_code
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case BrokenPipeError():
            return ExitCode.BROKEN_PIPE
        case MemoryError():
            return ExitCode.RESOURCES
        case OSError(errno=number) if number in _NO_SPACE:
            return ExitCode.RESOURCES
        case FileNotFoundError() | PermissionError() | IsADirectoryError() | NotADirectoryError():
            return ExitCode.USAGE
        case _:
            return ExitCode.INTERNAL
