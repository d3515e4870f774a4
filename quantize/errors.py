"""Errors of a build. Exit codes come with the bases."""

from runtimes.errors import ModelError, OutOfMemoryError, RequestError


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind where it has none."""
    return (str(error) or type(error).__name__).splitlines()[0]


class UsageError(RequestError):
    """The command cannot be carried out as written: an unknown recipe, no such folder."""


class SourceError(ModelError):
    """The source folder lacks something, or something in it is damaged."""


class ToolError(ModelError):
    """A converter, builder or quantizer failed; the message ends with its last lines."""


class TokenMismatchError(ModelError):
    """A built file splits text into other tokens than the original tokenizer."""


class CheckError(ModelError):
    """A built file does not load, or gives no answer."""


class QualityError(ModelError):
    """A built file is further from the original than its recipe allows."""


class MissedTargetError(QualityError):
    """No file keeps the target that was asked for; the nearest is kept aside."""

    exit_code = 1


class UnfinishedError(ModelError):
    """Some of the files could not be made; the others are there. Ends with the code of the first
    error."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DiskFullError(OutOfMemoryError):
    """There is not, or no longer, enough room on the disk."""


class BusyError(RequestError):
    """Another run is writing into the same output folder."""
