"""What the shell is told when a command ends, and which error means what."""

from __future__ import annotations

import errno
from enum import IntEnum

from runtimes.errors import IngotError, ModelError, OutOfMemoryError, RequestError


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


_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM})


def exit_code_for(error: BaseException) -> ExitCode:
    """The exit code that belongs to an error which ended a command."""
    match error:
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case BrokenPipeError():
            return ExitCode.BROKEN_PIPE
        case OutOfMemoryError() | MemoryError():
            return ExitCode.RESOURCES
        case OSError(errno=number) if number in _DISK_FULL:
            return ExitCode.RESOURCES
        case ModelError():
            return ExitCode.MODEL
        case RequestError() | FileNotFoundError() | PermissionError() | IsADirectoryError():
            return ExitCode.USAGE
        case IngotError():
            return ExitCode.USAGE
        case _:
            return ExitCode.INTERNAL


def is_expected(error: BaseException) -> bool:
    """Whether the error's own message says all that the user needs."""
    return exit_code_for(error) is not ExitCode.INTERNAL
