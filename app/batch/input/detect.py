"""What an input is: by its name where that says so, else by how it begins."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from app.batch.input.lines import UTF8_BOM
from app.batch.input.parquet_rows import MAGIC as PARQUET
from app.batch.input.raw import Format
from app.batch.input.streams import InputStream
from app.batch.input.tasks import BadRowError
from runtimes.errors import RequestError

_SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
_PACKED = frozenset({".gz", ".zst", ".zstd"})
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
# Archives and packings that are not read, so that their bytes are not taken for text.
_FOREIGN = (
    (b"PK\x03\x04", "a ZIP archive (or a spreadsheet); unpack it, or export CSV"),
    (b"BZh91AY&SY", "packed with bzip2; unpack it (bunzip2), or pack it with gzip or zstd"),
    (b"\xfd7zXZ\x00", "packed with xz; unpack it (unxz), or pack it with gzip or zstd"),
    (b"ARROW1\0\0", "an Arrow file; write it as Parquet"),
    (b"GGUF\x03\0\0\0", "a GGUF model; name the file of prompts first and the model with --model"),
    (b"%PDF-", "a PDF; extract its text first"),
)


def detect(path: Path, name: str, asked: Format | None) -> Format:
    """The format of ``path``, as the user ``asked`` or as it looks.

    Raises RequestError when there is nothing there that could be read.
    """
    if not name:
        raise RequestError("the input's name is empty")
    if not path.exists():
        raise RequestError(f"{name}: no such file")
    if path.is_dir():
        if asked not in (None, "folder", "text"):
            raise RequestError(f"{name} is a folder, whose files are a prompt each; name a file")
        return "folder"
    if asked == "folder":
        raise RequestError(f"{name} is a file; --input-format folder is for folders")
    if not path.is_file():
        # It is read more than once, which a pipe or a device does not allow.
        raise RequestError(f"{name} is not a regular file; pipe it in and name the input -")
    with InputStream(path, name) as stream:
        try:
            head = stream.start()
        except BadRowError as error:
            raise RequestError(f"{name} cannot be unpacked: {error}") from error
        packing = stream.packing
    looks = asked or ("parquet" if head.startswith(PARQUET) else _by_name(name))
    if looks == "parquet":
        if packing:
            raise RequestError(f"{name} is Parquet inside {packing}; unpack it first")
        return "parquet"
    return asked or _by_content(head, name)


def spool_stdin() -> Path:
    """Standard input as a temporary file: a job reads its input more than once. Raises RequestError
    where there is none."""
    if sys.stdin is None:
        raise RequestError("the input is -, and standard input is closed")
    with tempfile.NamedTemporaryFile(prefix="ingot-stdin-", delete=False) as file:
        path = Path(file.name)
        try:
            shutil.copyfileobj(sys.stdin.buffer, file)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return path


def _by_name(name: str) -> Format | None:
    suffix = _suffix(name)
    return _SUFFIXES.get(suffix)


def _suffix(name: str) -> str:
    path = Path(name)
    if path.suffix.lower() in _PACKED:
        path = path.with_suffix("")
    return path.suffix.lower()


def _by_content(head: bytes, name: str) -> Format:
    if head.startswith(_UTF16_BOMS):
        raise RequestError(f"{name} is UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    for magic, what in _FOREIGN:
        if head.startswith(magic):
            raise RequestError(f"{name} is {what}")
    start = head.removeprefix(UTF8_BOM).lstrip()[:1]
    if _suffix(name) == ".json" and start == b"[":
        raise RequestError(
            f"{name} holds one JSON list; JSONL has one object per line (jq -c '.[]' converts it)"
        )
    return _by_name(name) or ("jsonl" if start == b"{" else "text")
