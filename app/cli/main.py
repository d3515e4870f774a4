"""The `ingot` command. Importing it loads no engine, so that `--help` answers at once."""

import contextlib
import logging
import os
import signal
import sys
import traceback
from typing import Annotated

import typer

from app.cli.commands.batch import batch
from app.cli.commands.bench import bench
from app.cli.commands.chat import chat
from app.cli.commands.chats import chats
from app.cli.commands.compare import compare
from app.cli.commands.config import config
from app.cli.commands.doctor import doctor
from app.cli.commands.library import models, pull, rm
from app.cli.commands.plan import plan
from app.cli.commands.run import run
from app.exitcodes import ExitCode, exit_code_for
from quantize.cli import command as quantize

app = typer.Typer(
    name="ingot",
    help="Run quantized models on the runtime that is fastest here.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command(name="quantize")(quantize)
for _command in (chat, run, batch, bench, plan, compare, models, pull, rm):
    app.command()(_command)
app.add_typer(chats, name="chats")
app.add_typer(config, name="config")
app.command()(doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        # A slow import, which nothing else needs.
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"ingot {version('ingot')}")
        except PackageNotFoundError:
            typer.echo("ingot (not installed)")
        raise typer.Exit


@app.callback()
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
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s" if verbose else "ingot: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    for noisy in ("markdown_it", "asyncio", "urllib3", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; the return value is the exit code."""
    command = typer.main.get_command(app)
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
    if code != ExitCode.INTERNAL:
        text = str(error) or type(error).__name__
    else:
        text = f"internal error: {type(error).__name__}: {error} (`ingot -v ...` shows where)"
    sys.stderr.write(f"ingot: {text}\n")


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
