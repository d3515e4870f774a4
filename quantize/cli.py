"""The `quantize` command. Importing it loads no torch, so that `--help` answers at once."""

from __future__ import annotations

import errno
import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import typer
from typer import Argument, Option

from quantize.errors import DiskFullError, UsageError
from quantize.recipes import (
    FORMATS,
    Format,
    QualityTarget,
    Recipe,
    choose_formats,
    choose_recipes,
    find_recipe,
    print_listing,
    recipe_for,
    target_of,
)
from runtimes.errors import IngotError
from runtimes.output import LogFormatter, shown_streams

if TYPE_CHECKING:
    from quantize.manifest import FileEntry
    from quantize.options import Options

_INTERNAL, _INTERRUPTED = 70, 130
Several = list[str] | None  # an option that may be repeated


def command(
    model: str = Argument(
        ...,
        metavar="MODEL",
        help="Folder of a Hugging Face model, ORG/NAME or ORG/NAME@REVISION on the hub, or a"
        " GGUF file of floats. `recipes` lists the recipes.",
    ),
    to: str | None = Option(
        None, help="Formats, comma-separated: gguf,onnx; default both (targets: gguf)"
    ),
    bits: str | None = Option(None, help="Sizes, comma-separated: 4,8 (default: both)."),
    recipe: Several = Option(
        None, help="A recipe by name: q4_k_m, onnx-int8, q6_k ... Repeat for more."
    ),
    max_kl: Several = Option(
        None,
        metavar="NATS",
        help="The smallest file with at most this KL divergence from the float model, such as"
        " 0.02: every tensor gets a type of its own. Repeatable, as the other targets.",
    ),
    max_size: Several = Option(
        None, metavar="SIZE", help="The best file of at most this size, such as 1.2GB."
    ),
    bits_per_weight: Several = Option(
        None, metavar="BITS", help="The best file of so many bits a weight, such as 4.5."
    ),
    fits: Several = Option(
        None,
        metavar="SIZE",
        help="The best file that runs in so much memory with --context; with --max-kl one that"
        " loses no more, keys and values included.",
    ),
    context: int = Option(4096, min=64, help="Tokens of the chat that --fits leaves room for."),
    fastest: bool = Option(
        False,
        "--fastest",
        help="Of the files that keep a target the fastest, by kernels timed here.",
    ),
    rows: int = Option(1, min=1, help="Rows of a step that --fastest is for: 1 is a chat."),
    allocation: Several = Option(
        None,
        metavar="MANIFEST#NAME",
        help="Build a target's file exactly again, with the types that a manifest.json lists.",
    ),
    out: Path | None = Option(None, help="Output folder (default: MODEL-built beside the model)."),
    revision: str | None = Option(None, help="Branch, tag or commit on the hub."),
    lora: str | None = Option(
        None, help="Merge this adapter first: a folder, or ORG/NAME on the hub."
    ),
    adapter: str | None = Option(
        None,
        metavar="DIR",
        help="Only make a GGUF file of this LoRA adapter of MODEL, to load beside its"
        " quantized files: a folder, or ORG/NAME on the hub. --out says where.",
    ),
    imatrix: Path | None = Option(
        None,
        help="Importance matrix, by which rounding spares the weights that matter: a text to"
        " compute it from, or a ready one. A text also smooths the activations of onnx-w8a8.",
    ),
    gptq: bool = Option(
        False,
        "--gptq",
        help="Make up for the error of a weight in those that are rounded after it (GPTQ), by the"
        " text of --imatrix or a bundled one. Takes longer.",
    ),
    override: Several = Option(
        None,
        metavar="REGEX=TYPE",
        help="Use this llama.cpp type for tensors whose names match. Repeatable.",
    ),
    target: str = Option("cpu", help="What ONNX graphs are built for: cpu, cuda or webgpu."),
    no_measure: bool = Option(False, "--no-measure", help="Do not measure quality and speed."),
    measure_text: Path | None = Option(None, help="Compare with the float model on this text."),
    limit: int | None = Option(None, min=1, help="Compare on this many tokens at most."),
    measure_again: bool = Option(
        False, "--measure-again", help="Measure again, for example if the machine was busy."
    ),
    no_gates: bool = Option(
        False, "--no-gates", help="Publish files that are worse than their recipe's limit."
    ),
    allow_token_mismatch: bool = Option(
        False,
        "--allow-token-mismatch",
        help="Publish files whose tokens differ from the original's.",
    ),
    allow_pickle: bool = Option(
        False, "--allow-pickle", help="Accept pickle weights if there are no others."
    ),
    allow_requantize: bool = Option(
        False, "--allow-requantize", help="Accept a GGUF file that is quantized already."
    ),
    trust_remote_code: bool = Option(
        False, "--trust-remote-code", help="Run Python code that comes with the model."
    ),
    push: str | None = Option(None, metavar="ORG/NAME", help="Upload the result to the hub."),
    fresh: bool = Option(False, "--fresh", help="Build files again that are already there."),
    as_json: bool = Option(
        False, "--json", help="Print events as JSON lines instead of the table."
    ),
    verbose: bool = Option(False, "--verbose", "-v", help="Show the output of the tools."),
) -> None:
    """Melt a Hugging Face model down into 4- and 8-bit GGUF and ONNX files.

    Every file is checked against the original's tokens, loaded, measured
    against the original, and only then put into the output folder, with a
    manifest.json beside it. The same command resumes an interrupted run, and
    builds nothing that is already there.
    """
    if verbose:
        logging.getLogger().setLevel(logging.DEBUG)
    if model == "recipes":
        print_listing()
        return
    # Late, as whatever --help does not need.
    from quantize.options import DEFAULT_LIMIT, MeasureOptions, Options, SourceOptions
    from quantize.options import Target as Processor

    listed: dict[str, FileEntry] = {}
    if allocation:
        from quantize.build.target import find_listed

        listed = {entry.recipe: entry for entry in map(find_listed, allocation)}
    targets = [
        *(target_of("kl", text) for text in max_kl or []),
        *(target_of("bytes", text) for text in max_size or []),
        *(target_of("bits", text) for text in bits_per_weight or []),
        *(target_of("memory", text, context) for text in fits or []),
    ]
    if fits and max_kl:
        kl, *others = (one for one in targets if one.bound == "kl")
        if others:
            raise UsageError("--fits takes one --max-kl; other files are made in runs of their own")
        targets = [one.losing(kl) if one.bound == "memory" else one for one in targets[1:]]
    if fastest:
        if not targets:
            raise UsageError(
                "--fastest goes with a target: --max-kl, --max-size, --bits-per-weight or --fits"
            )
        targets = [one.fastest(rows) for one in targets]
    if target not in (known := get_args(Processor)):
        raise UsageError(f"--target takes {', '.join(known)}, not {target!r}")
    if adapter is not None:
        if lora is not None:
            raise UsageError("--adapter makes a file of an adapter, --lora merges it: give one")
        if recipe or to or bits or targets or listed or imatrix or gptq or push:
            raise UsageError("--adapter builds no model: give it with --out and --revision only")
        from quantize.lora import write_adapter
        from quantize.progress import ConsoleReporter

        source = SourceOptions(model, revision, allow_pickle=allow_pickle)
        typer.echo(write_adapter(source, adapter, out, ConsoleReporter()))
        return
    options = Options(
        source=SourceOptions(
            model, revision, lora, allow_pickle, trust_remote_code, allow_requantize
        ),
        recipes=_recipes([*(recipe or []), *listed], to, bits, targets),
        out=out,
        measure=MeasureOptions(
            not no_measure, measure_text, limit or DEFAULT_LIMIT, not no_gates, measure_again
        ),
        allow_token_mismatch=allow_token_mismatch,
        imatrix=imatrix,
        gptq=gptq,
        overrides=_overrides(override or []),
        target=cast(Processor, target),
        push=push,
        as_json=as_json,
        fresh=fresh,
        allocations=listed,
    )
    _run(options)


def _recipes(
    names: Sequence[str], to: str | None, bits: str | None, targets: Sequence[QualityTarget]
) -> tuple[Recipe, ...]:
    """Targets and named recipes alone, or the presets of --to and --bits, or both when both are
    given; with targets --to says what these are made in."""
    presets: tuple[Recipe, ...] = ()
    formats = choose_formats(_split(to)) if to is not None else None
    if bits is not None or (not targets and (formats or not names)):
        try:
            sizes = [int(text) for text in _split(bits)] if bits is not None else [4, 8]
        except ValueError:
            raise UsageError(f"--bits takes numbers, not {bits!r}") from None
        presets = choose_recipes(formats=formats or FORMATS, bits=sizes)
    named = (find_recipe(name) for text in names for name in _split(text))
    kept_in: Sequence[Format] = formats or ("gguf",)
    aimed = (recipe_for(target, made_in) for made_in in kept_in for target in targets)
    wanted = (*presets, *named, *aimed)
    return tuple({item.name: item for item in wanted}.values())


def _overrides(texts: Sequence[str]) -> dict[str, str]:
    """REGEX=TYPE, in the order given; an expression may hold a = itself."""
    found = {}
    for text in texts:
        pattern, _, kind = text.rpartition("=")
        if not pattern or not kind.strip():
            raise UsageError(f"--override takes REGEX=TYPE, not {text!r}")
        found[pattern] = kind.strip().lower()
    return found


def _split(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def _run(options: Options) -> None:
    """Build with events on stdout, or with progress on stderr and the table on stdout."""
    from quantize.build.pipeline import build

    # Ended politely, clean up as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if options.as_json:
        from quantize.manifest import NAME
        from quantize.progress import JsonReporter

        events = JsonReporter(sys.stdout)
        try:
            folder, _ = build(options, events)
        except BaseException as error:
            events.failed(error, exit_code(error))
            raise
        events.done(folder / NAME)
        return
    from quantize.progress import ConsoleReporter, beating
    from quantize.report.table import print_table

    reporter = ConsoleReporter()
    with beating(reporter):
        folder, manifest = build(options, reporter)
    print_table(manifest, folder, tuple(item.name for item in options.recipes))


def main() -> int:
    """Run the command line; the exit code."""
    with shown_streams():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LogFormatter("quantize: %(message)s"))
        logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
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
            if code == _INTERRUPTED:  # Typer has taken the KeyboardInterrupt
                return _report(KeyboardInterrupt())
            return code if isinstance(code, int) else 0 if code is None else UsageError.exit_code
        except (Exception, KeyboardInterrupt) as error:
            return _report(error)
        return 0


def exit_code(error: BaseException) -> int:
    """Exit code of a command that ``error`` ends."""
    match error:
        case KeyboardInterrupt():
            return _INTERRUPTED
        case SystemExit(code=int(code)):
            return code
        case IngotError():
            return error.exit_code
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return DiskFullError.exit_code
    return _INTERNAL


def _report(error: BaseException) -> int:
    """One message on stderr; the traceback of a defect only with -v."""
    code = exit_code(error)
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("quantize: interrupted; the same command resumes from what is finished\n")
        return code
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, IngotError):
        sys.stderr.write(f"quantize: {error}\n")
    elif code == DiskFullError.exit_code:
        sys.stderr.write(f"quantize: the disk is full: {error}\n")
    else:
        name = type(error).__name__
        sys.stderr.write(f"quantize: internal error: {name}: {error} (-v shows where)\n")
    return code
