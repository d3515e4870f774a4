"""The log of a command: on stderr warnings, or all with --verbose; a file of it with --log-file."""

import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

from app.cli.options import flags_of, with_groups
from app.options import option
from runtimes.errors import RequestError
from runtimes.output import LogFormatter

_SHORT, _LONG = "ingot: %(message)s", "%(levelname)s %(name)s: %(message)s"
_IN_FILE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options of every command, before its name or after it."""

    panel: ClassVar = "Log"
    verbose: bool = option(False, "Log what happens; show tracebacks.", "--verbose", "-v")
    log_file: Path | None = option(
        None, "Also write the log there, with times and tracebacks.", metavar="FILE"
    )


def begin_log() -> None:
    """Warnings go to stderr until a command line says otherwise."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(_SHORT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for noisy in ("markdown_it", "asyncio", "urllib3", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def logged(command: Callable[..., Any] | None) -> Callable[..., Any]:
    """``command`` with the options of the log that it does not have itself."""
    assert command is not None
    command = command if hasattr(command, "__wrapped__") else with_groups(command)
    own = inspect.signature(command).parameters
    added = [one for one in flags_of(LogOptions) if one.name not in own]

    @wraps(command)
    def run(**values: Any) -> Any:
        _set_up(LogOptions(**{one.name: values.pop(one.name) for one in added}))
        return command(**values)

    run.__signature__ = inspect.Signature([*own.values(), *added])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, **{one.name: one.annotation for one in added}}
    return run


def _set_up(options: LogOptions) -> None:
    """Raises RequestError for a file that cannot be written."""
    root = logging.getLogger()
    if options.log_file is not None:
        try:
            handler = logging.FileHandler(options.log_file, encoding="utf-8", errors="replace")
        except OSError as error:
            said = error.strerror or error
            raise RequestError(
                f"--log-file: {options.log_file} cannot be written: {said}"
            ) from error
        handler.setFormatter(LogFormatter(_IN_FILE))
        logging.raiseExceptions = False  # a full disk ends no command by what it logs
        root.handlers[0].setLevel(root.level)  # stderr says no more than without it
        root.addHandler(handler)
        root.setLevel(min(root.level, logging.INFO))
    if options.verbose:
        root.handlers[0].setFormatter(LogFormatter(_LONG))
        root.handlers[0].setLevel(logging.DEBUG)
        root.setLevel(logging.DEBUG)


def log_error(error: BaseException) -> None:
    """Write the error that ends a command, with its traceback, into the log's file."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            how = (type(error), error, error.__traceback__)
            handler.handle(
                logging.LogRecord("app", logging.ERROR, "", 0, "the command failed", (), how)
            )
