"""The `ingot` command. Importing it loads no engine, so that `--help` answers at once."""

import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from app.cli.options import take_plain
from app.exitcodes import ExitCode, exit_code_for
from runtimes.output import LogFormatter, shown_streams

# As `--help` lists them, each with where it is; groups of commands come last.
_COMMANDS = {
    "quantize": ("quantize.cli", "command"),
    "chat": ("app.cli.commands.chat", "chat"),
    "run": ("app.cli.commands.run", "run"),
    "batch": ("app.cli.commands.batch", "batch"),
    "embed": ("app.cli.commands.batch", "embed"),
    "serve": ("app.cli.commands.serve", "serve"),
    "bench": ("app.cli.commands.speed", "bench"),
    "plan": ("app.cli.commands.speed", "plan"),
    "compare": ("app.cli.commands.run", "compare"),
    "models": ("app.cli.commands.library", "models"),
    "pull": ("app.cli.commands.library", "pull"),
    "rm": ("app.cli.commands.library", "rm"),
    "chats": ("app.cli.commands.chat", "chats"),
    "config": ("app.cli.commands.config", "config"),
    "doctor": ("app.cli.commands.doctor", "doctor"),
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
        module, attribute = _COMMANDS[name]
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name=name)(found)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        # A slow import, which nothing else needs.
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"ingot {version('ingot')}")
        except PackageNotFoundError:
            typer.echo("ingot (not installed)")
        raise typer.Exit


def _root(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what happens; show tracebacks.")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    form = "%(levelname)s %(name)s: %(message)s" if verbose else "ingot: %(message)s"
    handler.setFormatter(LogFormatter(form))
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("markdown_it", "asyncio", "urllib3", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; the return value is the exit code."""
    with shown_streams():
        return _run(arguments)


def _run(arguments: list[str] | None) -> int:
    take_plain()
    command = typer.main.get_command(_commands(sys.argv[1:] if arguments is None else arguments))
    try:
        command(args=arguments, prog_name="ingot")
        code = int(ExitCode.DONE)
    except SystemExit as leaving:  # how Typer ends every command, its usage errors included
        code = leaving.code if isinstance(leaving.code, int) else int(ExitCode.USAGE)
        if leaving.code is None:
            code = int(ExitCode.DONE)
        if isinstance(leaving.__context__, BrokenPipeError):
            code = int(ExitCode.BROKEN_PIPE)
    except (Exception, KeyboardInterrupt) as error:
        code = int(exit_code_for(error))
        _report(error, code)
    if arguments is None:
        # The command has ended: a second Ctrl-C while Python shuts down must not change how.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _flush(code)


def _report(error: BaseException, code: int) -> None:
    """One line on stderr; the traceback only for those who asked with -v."""
    if isinstance(error, (BrokenPipeError, KeyboardInterrupt)):
        return
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        text = "the folder that this was started in was deleted: change to another one"
    elif code != ExitCode.INTERNAL:
        text = str(error) or type(error).__name__
    else:
        text = f"internal error: {type(error).__name__}: {error} (`ingot -v ...` shows where)"
    sys.stderr.write(f"ingot: {text}\n")


def _is_nowhere() -> bool:
    """Whether the working folder is not there any more."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _flush(code: int) -> int:
    """Write out what is buffered while a closed pipe can still be told from a defect."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = int(ExitCode.BROKEN_PIPE)
    if code == ExitCode.BROKEN_PIPE:
        # The interpreter flushes once more at exit: give it somewhere harmless to write.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    sys.exit(main())
