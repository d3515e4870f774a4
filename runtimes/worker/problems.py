"""Exceptions across the border of the worker."""

from runtimes import errors
from runtimes.errors import IngotError, OutOfMemoryError, RuntimeMissingError
from runtimes.machine.processes import import_advice
from runtimes.worker.wire import Problem


class WorkerError(IngotError):
    """The worker process died, and with it what was asked of it.

    Asking again may help: it is started anew.
    """

    exit_code = 3


def pack(error: BaseException) -> Problem:
    """Name the nearest class of runtimes.errors; what is none of them keeps its own in the text."""
    if isinstance(error, MemoryError):
        return Problem(OutOfMemoryError.__name__, "the machine is out of memory")
    if isinstance(error, (ImportError, SyntaxError)):
        text = import_advice(f"{type(error).__name__}: {error}")
        return Problem(RuntimeMissingError.__name__, f"the worker process {text}")
    for kind in type(error).__mro__:
        if getattr(errors, kind.__name__, None) is kind:
            return Problem(kind.__name__, str(error))
    return Problem(IngotError.__name__, f"{type(error).__name__}: {error}")


def unpack(problem: Problem) -> IngotError:
    """The exception to raise."""
    kind = getattr(errors, problem.kind)
    assert issubclass(kind, IngotError)
    error: IngotError = kind(problem.text)
    return error
