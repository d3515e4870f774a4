"""The input formats, and which of them a file has: by its name where that says so, else by how it
begins."""

from pathlib import Path

from app.batch.input.csv_rows import CSV
from app.batch.input.folder_rows import FOLDER
from app.batch.input.jsonl_rows import JSONL
from app.batch.input.lines import UTF8_BOM, InputStream
from app.batch.input.parquet_rows import PARQUET
from app.batch.input.row import Reader
from app.batch.input.text_rows import TEXT
from app.openai.validation import InputError
from runtimes.errors import RequestError

READERS = {reader.name: reader for reader in (JSONL, TEXT, CSV, PARQUET, FOLDER)}

_PACKED = frozenset({".gz", ".zst", ".zstd"})
_UTF16 = "UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"
# What is not read, so that its bytes are not taken for text.
_FOREIGN = (
    (b"\xff\xfe", _UTF16),
    (b"\xfe\xff", _UTF16),
    (b"PK\x03\x04", "a ZIP archive (or a spreadsheet); unpack it, or export CSV"),
    (b"BZh91AY&SY", "packed with bzip2; unpack it (bunzip2), or pack it with gzip or zstd"),
    (b"\xfd7zXZ\x00", "packed with xz; unpack it (unxz), or pack it with gzip or zstd"),
    (b"ARROW1\0\0", "an Arrow file; write it as Parquet"),
    (b"GGUF\x03\0\0\0", "a GGUF model; name the file of prompts first and the model with --model"),
    (b"%PDF-", "a PDF; extract its text first"),
)


def detect(path: Path, name: str, asked: str | None) -> Reader:
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
        return FOLDER
    if asked == "folder":
        raise RequestError(f"{name} is a file; --input-format folder is for folders")
    if not path.is_file():
        # It is read more than once, which a pipe or a device does not allow.
        raise RequestError(f"{name} is not a regular file; pipe it in and name the input -")
    with InputStream(path, name) as stream:
        try:
            head = stream.start()
        except InputError as error:
            raise RequestError(f"{name} cannot be unpacked: {error}") from error
    called = Path(name)
    suffix = (called.with_suffix("") if called.suffix.lower() in _PACKED else called).suffix.lower()
    by_magic = [one for one in READERS.values() if one.magic and head.startswith(one.magic)]
    by_name = [one for one in READERS.values() if suffix in one.suffixes]
    known = [READERS[asked]] if asked else by_magic or by_name
    if known and not known[0].packed and stream.packing:
        raise RequestError(
            f"{name} is {known[0].name.capitalize()} inside {stream.packing}; unpack it first"
        )
    foreign = [what for magic, what in _FOREIGN if head.startswith(magic)]
    if foreign and not asked and not (known and known[0].magic):
        raise RequestError(f"{name} is {foreign[0]}")
    start = head.removeprefix(UTF8_BOM).lstrip()[:1]
    if not asked and suffix == ".json" and start == b"[":
        raise RequestError(
            f"{name} holds one JSON list; JSONL has one object per line (jq -c '.[]' converts it)"
        )
    by_start = [one for one in READERS.values() if one.first and one.first == start]
    return (known or by_start or [TEXT])[0]
