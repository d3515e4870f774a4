"""The `quantize` command. Importing it loads no torch, so that `--help` answers at once."""

from __future__ import annotations

import errno
import logging
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from quantize.errors import DiskFullError, UsageError
from quantize.recipe import FORMATS, Recipe, choose_recipes, find_recipe
from runtimes.errors import IngotError

_INTERNAL, _INTERRUPTED = 70, 130


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a Hugging Face model.")],
    to: Annotated[
        str | None, typer.Option("--to", help="Formats, comma-separated: gguf,onnx; default both")
    ] = None,
    bits: Annotated[
        str | None, typer.Option("--bits", help="Sizes, comma-separated: 4,8 (default: both).")
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe", help="A recipe by name: q4_k_m, onnx-int8, q6_k ... Repeat for more."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Output folder (default: MODEL-built beside the model)."),
    ] = None,
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="Skip accuracy and speed.")
    ] = False,
    allow_token_mismatch: Annotated[
        bool,
        typer.Option(
            "--allow-token-mismatch", help="Publish files that split text into other tokens."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the manifest instead of the table.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what the tools say.")
    ] = False,
) -> None:
    """Melt a Hugging Face model down into 4- and 8-bit GGUF and ONNX files.

    Every file is checked against the original's tokens, loaded, asked a question and measured
    before it appears in the output folder, with a manifest.json beside it.
    """
    if verbose:
        logging.getLogger().setLevel(logging.DEBUG)
    recipes = _recipes(recipe or [], to, bits)
    from quantize.pipeline import Options, build
    from quantize.progress import ConsoleReporter
    from quantize.report import print_table

    options = Options(
        model=model,
        recipes=recipes,
        out=out,
        measure=not no_measure,
        allow_token_mismatch=allow_token_mismatch,
    )
    folder, manifest = build(options, ConsoleReporter())
    if as_json:
        typer.echo(manifest.to_json(), nl=False)
    else:
        print_table(manifest, folder, tuple(item.name for item in recipes))


def main() -> int:
    """Run the command line; the exit code."""
    logging.basicConfig(
        level=logging.WARNING, format="quantize: %(message)s", stream=sys.stderr, force=True
    )
    # Ended politely, clean up as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(name="quantize")(command)
    try:
        app(prog_name="quantize")
    except SystemExit as leaving:
        code = leaving.code
        return code if isinstance(code, int) else 0 if code is None else UsageError.exit_code
    except (Exception, KeyboardInterrupt) as error:
        return _report(error)
    return 0


def _recipes(names: list[str], to: str | None, bits: str | None) -> tuple[Recipe, ...]:
    """Named recipes alone, or the presets of --to and --bits, or both when both are given."""
    presets: tuple[Recipe, ...] = ()
    if to is not None or bits is not None or not names:
        presets = choose_recipes(
            formats=_split(to) if to is not None else FORMATS,
            bits=[_number(text) for text in _split(bits)] if bits is not None else (4, 8),
        )
    named = (find_recipe(name) for text in names for name in _split(text))
    return tuple({item.name: item for item in (*presets, *named)}.values())


def _split(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--bits takes numbers, not {text!r}") from None


def _report(error: BaseException) -> int:
    """One message on stderr; the traceback of a defect only with -v."""
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("quantize: interrupted; nothing unfinished was left behind\n")
        return _INTERRUPTED
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, IngotError):
        sys.stderr.write(f"quantize: {error}\n")
        return error.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        sys.stderr.write(f"quantize: the disk is full: {error}\n")
        return DiskFullError.exit_code
    name = type(error).__name__
    sys.stderr.write(f"quantize: internal error: {name}: {error} (-v shows where)\n")
    return _INTERNAL


if __name__ == "__main__":
    sys.exit(main())
