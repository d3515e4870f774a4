"""Errors of the runtimes. Front ends map each class to its exit code."""


class IngotError(Exception):
    """Base of every error whose message is meant for the user.

    ``exit_code`` is what a command line tool ends with when the error reaches it.
    """

    exit_code = 1


class RequestError(IngotError):
    """The request cannot be served as asked: a bad parameter, a prompt that is too long."""

    exit_code = 2


class ParameterError(RequestError):
    """A parameter's value cannot be used; ``field`` is the parameter's name."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ModelError(IngotError):
    """The model file is missing, truncated, or of a kind that no runtime here can load."""

    exit_code = 3


class RuntimeMissingError(ModelError):
    """No library is installed that could run the file."""


class WorkerError(IngotError):
    """The worker process died, and with it what was asked of it.

    Asking again may help: it is started anew.
    """

    exit_code = 3


class OutOfMemoryError(IngotError):
    """The model with the asked settings does not fit into memory, or the disk is full."""

    exit_code = 4
