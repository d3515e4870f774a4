"""The `ingot` command. Importing it loads no engine, so that `--help` answers at once."""

import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import typer

from app.cli.log import begin_log, log_error, logged
from app.cli.options import take_plain, with_groups
from app.exitcodes import ExitCode, exit_code_for
from app.here import here
from app.options import option
from runtimes import own
from runtimes.output import shown_streams

# As `--help` lists them, each with its module; groups of commands come last.
_COMMANDS = {
    "quantize": "quantize.cli",
    "chat": "chat",
    "run": "run",
    "batch": "batch",
    "embed": "batch",
    "serve": "serve",
    "bench": "speed",
    "plan": "speed",
    "measure": "measure",
    "compare": "run",
    "models": "library",
    "pull": "library",
    "rm": "library",
    "chats": "chat",
    "config": "config",
    "doctor": "doctor",
}


def _commands(arguments: Sequence[str]) -> typer.Typer:
    """The command that is asked for, else all of them: each takes time to import and to make."""
    app = typer.Typer(
        name="ingot",
        help="Run quantized models on the runtime that is fastest here.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    first = next((one for one in arguments if not one.startswith("-")), "")
    for name in [first] if first in _COMMANDS else _COMMANDS:
        module = _COMMANDS[name]
        if name == "quantize":
            found = import_module(own(module)).command
        else:
            found = getattr(import_module(own(f"app.cli.commands.{module}")), name)
        if isinstance(found, typer.Typer):
            for one in (*found.registered_commands, found.registered_callback):
                if one is not None:
                    one.callback = logged(one.callback)
            app.add_typer(found, name=name)
        else:
            app.command(name=name)(logged(found))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        # A slow import, which nothing else needs.
        from runtimes.machine.installed import versions

        typer.echo(f"ingot {versions(['ingot']).get('ingot', '(not installed)')}")
        raise typer.Exit


@logged
@with_groups
def _root(
    version: bool = option(
        False, "Print the version.", "--version", callback=_print_version, is_eager=True
    ),
) -> None:
    pass


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; the return value is the exit code."""
    with shown_streams():
        return _run(arguments)


def _run(arguments: list[str] | None) -> int:
    take_plain()
    begin_log()
    command = typer.main.get_command(_commands(sys.argv[1:] if arguments is None else arguments))
    try:
        command(args=arguments, prog_name="ingot")
        code: int = ExitCode.DONE
    except SystemExit as leaving:  # how Typer ends every command, its usage errors included
        said = leaving.code or ExitCode.DONE
        code = said if isinstance(said, int) else ExitCode.USAGE
        if isinstance(leaving.__context__, BrokenPipeError):
            code = ExitCode.BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code_for(error)
        _report(error, code)
    if arguments is None:
        # The command has ended: a second Ctrl-C while Python shuts down must not change how.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _flush(code)


def _report(error: BaseException, code: int) -> None:
    """One line on stderr; the traceback for those who asked with -v, and in the log's file."""
    if isinstance(error, (BrokenPipeError, KeyboardInterrupt)):
        return
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        traceback.print_exception(error, file=sys.stderr)
    log_error(error)
    lost = isinstance(error, FileNotFoundError) and error.filename is None
    if lost and here() == Path():
        text = "the folder that this was started in was deleted: change to another one"
    elif code != ExitCode.INTERNAL:
        text = str(error) or type(error).__name__
    else:
        text = f"internal error: {type(error).__name__}: {error} (`ingot -v ...` shows where)"
    sys.stderr.write(f"ingot: {text}\n")


def _flush(code: int) -> int:
    """Write out what is buffered while a closed pipe can still be told from a defect."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = ExitCode.BROKEN_PIPE
    if code == ExitCode.BROKEN_PIPE:
        # The interpreter flushes once more at exit: give it somewhere harmless to write.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
