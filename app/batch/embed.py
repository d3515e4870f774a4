"""Embeddings of a few texts or of a file of them: a batch job that keeps no journal."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from app import console
from app.batch.output.records import dump_line, writing
from app.batch.run import run_batch
from app.batch.spec import BatchSpec, InputOptions
from app.exitcodes import ExitCode
from app.here import same_file
from app.options import ModelOptions
from app.prompts import clean_argument
from quantize.disk import outfile
from runtimes.errors import RequestError
from runtimes.untrusted import JsonObject


@dataclass(frozen=True, slots=True)
class EmbedJob:
    """Texts to embed, and the file for their embeddings; without ``output`` stdout."""

    model: str
    texts: Sequence[str]  # else those of the input
    input: str | None  # a file or a folder; - for standard input
    field: str | None
    dimensions: int | None
    output: Path | None
    form: Literal["jsonl", "npy"]
    options: ModelOptions


def run_embed(job: EmbedJob, *, quiet: bool) -> ExitCode:
    """Embed every text, in order. An array has all of them or is not written.

    Raises IngotError as ``run_batch``.
    """
    with _input(job) as source, _sink(job) as write:
        rows = InputOptions(task="embed", field=job.field, dimensions=job.dimensions)
        spec = BatchSpec(source, "-", job.model, rows=rows, options=job.options)
        if job.form == "jsonl":
            code = run_batch(spec, quiet=quiet, write=write)
            if code == ExitCode.INTERRUPTED:
                raise KeyboardInterrupt  # half a file is not put in place
            return code
        vectors, errors = list[npt.NDArray[np.float32]](), list[str]()

        def take(line: bytes) -> None:
            record: JsonObject = json.loads(line)
            if "error" in record:
                errors.append(record["error"]["message"])
            else:
                vectors.append(np.array(record["embedding"], np.float32))

        code = run_batch(spec, quiet=quiet, write=take)
        if code == ExitCode.DONE:
            file = BytesIO()
            np.save(file, np.stack(vectors))
            write(file.getvalue())
        elif errors:
            console.note(f"no array was written: {errors[0]}", style="red")
        return code


@contextmanager
def _input(job: EmbedJob) -> Iterator[str]:
    """The name of the input; texts that were given are a file meanwhile. Raises RequestError."""
    if job.texts and job.input is not None:
        raise RequestError("give texts or --input, not both")
    if not job.texts:
        if job.input is None and (sys.stdin is None or sys.stdin.isatty()):
            raise RequestError("there is no text: give some, name a file with --input, or pipe in")
        yield job.input or "-"
        return
    with tempfile.TemporaryDirectory(prefix="ingot-embed-") as folder:
        path = Path(folder) / "texts.jsonl"
        texts = [clean_argument(text, console.note) for text in job.texts]
        for number, text in enumerate(texts, 1):
            if not (text or "").strip():
                raise RequestError(f"text {number} is blank")
        path.write_bytes(b"".join(dump_line({"text": text}) for text in texts))
        yield str(path)


@contextmanager
def _sink(job: EmbedJob) -> Iterator[Callable[[bytes], object]]:
    """Takes what is written; a file is put in place at the end. Raises OutOfMemoryError for a full
    disk."""
    if job.output is None:
        if job.form == "npy" and sys.stdout.isatty():
            raise RequestError("an array is no text for a terminal: name a file with --output")
        yield console.emit_bytes
        return
    out = job.output
    if job.input is not None and same_file(out, Path(job.input)):
        raise RequestError("the output would overwrite the input; name another file")
    with ExitStack() as stack:
        with writing(out):  # and below: an error of the job is not one of its output
            partial = stack.enter_context(outfile(out))
            file = stack.enter_context(partial.open("wb"))

        def write(data: bytes) -> None:
            with writing(out):
                file.write(data)

        yield write
        with writing(out):
            file.close()
            if not partial.stat().st_size:
                partial.unlink()  # what is at its place stays
            stack.close()
