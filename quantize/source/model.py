"""What later steps know of the model that they build from."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quantize.disk import sha256_of
from quantize.manifest import ModelOrigin
from quantize.source.files import EVALUATION, GRADED, small_files


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model whose configuration, weights and tokenizer are all there.

    One that is a GGUF file has no configuration and no Hugging Face tokenizer.
    """

    folder: Path
    architecture: str
    weights: tuple[Path, ...]
    parameters: int  # the number of weights
    name: str  # what built files are named after
    beside: Path  # the folder that outputs go into by default
    # A Hugging Face folder, or one GGUF file of floating point weights.
    kind: Literal["hf", "gguf"] = "hf"
    revision: str | None = None  # the commit of a model from the hub
    trust_remote_code: bool = False
    bytes: int = 0  # of the weights on disk
    lora: str | None = None  # the adapter that has been merged
    quantized: str = ""  # of a GGUF file that is quantized already: its types

    @property
    def graded(self) -> Path | None:
        """Graded questions that came with the model, if any."""
        path = self.folder / GRADED
        return path if path.is_file() else None

    @property
    def evaluation(self) -> Path | None:
        """The text that came with the model to measure its builds on, if any."""
        path = self.folder / EVALUATION
        return path if self.kind == "hf" and path.is_file() else None

    @property
    def default_out(self) -> Path:
        """Where built files go unless the user says: beside the model's folder, or, for a model
        that was downloaded, in the current folder."""
        return self.beside / f"{self.name}-built"

    def fingerprint(self) -> ModelOrigin:
        """Name and hash: two sources with the same hash give the same files.

        The hash is over the names and contents of the configuration, the tokenizer's files and the
        weights. It reads all of them.
        """
        digest = hashlib.sha256()
        small = small_files(self.folder) if self.kind == "hf" else ()
        for path in (*small, *self.weights):
            # The file that is converted is named by the user: its name decides nothing.
            digest.update(f"{path.name if self.kind == 'hf' else ''}\0".encode())
            digest.update(bytes.fromhex(sha256_of(path)))
        return ModelOrigin(self.name, digest.hexdigest(), revision=self.revision, lora=self.lora)
