"""`ingot embed`: vectors of texts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from app.cli.groups import with_groups
from app.cli.options import ModelArgument
from app.options import ModelOptions


@with_groups
def embed(
    model: ModelArgument,
    options: ModelOptions,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts. Without any, standard input has one a line."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="IN",
            help="A file or a folder of texts, as `ingot batch` reads it; - for standard input.",
        ),
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="Field with the text: a name or a dotted path.")
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="The first N numbers, of length 1 again."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Instead of stdout.")
    ] = None,
    form: Annotated[
        Literal["jsonl", "npy"] | None,
        typer.Option(
            "--format",
            help="A JSON object for each text, or NumPy's array of float32.",
            show_default="npy if FILE ends in .npy, else jsonl",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no figures on stderr.")
    ] = False,
) -> None:
    """Embed texts: vectors of length 1, near each other for texts that are alike.

    GGUF files give embeddings; ONNX graphs do not. Exits 1 if some texts failed.
    """
    from app.batch.embed import EmbedJob, run_embed

    if form is None:
        form = "npy" if output is not None and output.suffix.lower() == ".npy" else "jsonl"
    job = EmbedJob(model, tuple(texts or ()), source, field, dimensions, output, form, options)
    raise typer.Exit(run_embed(job, quiet=quiet))
