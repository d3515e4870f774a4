"""A file as it is uploaded: multipart/form-data, written to the disk as it comes."""

from typing import Any

import anyio
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from app.serve.batches.files import INPUT, MOST_NAME, Files, NewFile, StoredFile
from app.serve.errors import HttpError

_MOST_FIELD_BYTES = 4096
_MOST_PARTS = 16
MOST_UPLOADS = 64  # at a time: each has a file open, and may fill the disk
_RETRY_S = 5


async def receive(request: Request, files: Files) -> StoredFile:
    """The file of an upload, kept; the guard bounds its size. Raises HttpError, and as
    ``NewFile.write``."""
    form = _Form(request.headers.get("content-type"), files)
    if files.uploads >= MOST_UPLOADS:
        said = f"{MOST_UPLOADS} files are being uploaded already"
        raise HttpError(503, "uploads_full", said, retry_s=_RETRY_S)
    files.uploads += 1
    try:
        async for chunk in request.stream():
            if chunk:
                await run_in_threadpool(form.feed, chunk)
        return await run_in_threadpool(form.keep)
    except ClientDisconnect as error:
        raise HttpError(400, "client_closed", "the upload was not finished") from error
    finally:
        files.uploads -= 1
        with anyio.CancelScope(shield=True):
            await run_in_threadpool(form.drop)


class _Form:
    """The parts of the form as they come. Used by one thread at a time."""

    def __init__(self, content_type: str | None, files: Files) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise HttpError(
                400,
                "invalid_content_type",
                "a file is uploaded as multipart/form-data, with its parts file and purpose",
            )
        self._files = files
        self._file: NewFile | None = None
        self._filename = ""
        self._fields: dict[str, bytearray] = {}
        self._name, self._headers = "", {}  # type: tuple[str, dict[bytes, bytes]]
        self._header, self._value = b"", b""
        self._parts, self._whole = 0, False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begins,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_ends,
                    "on_headers_finished": self._headers_end,
                    "on_part_data": self._data,
                    "on_end": self._ends,
                },
            )
        except FormParserError as error:
            raise _malformed(error) from error

    def feed(self, chunk: bytes) -> None:
        """More of the body."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _malformed(error) from error

    def keep(self) -> StoredFile:
        """At the end of the body."""
        if not self._whole:
            raise _malformed("it ends before its last boundary")
        unknown = self._fields.keys() - {"purpose"}
        if unknown:
            name = min(unknown)[:60]
            raise HttpError(400, "unsupported_parameter", f"{name} is not supported")
        purpose = self._fields.get("purpose", b"").decode("utf-8", errors="replace")
        if purpose != INPUT:
            said = repr(purpose[:60]) if purpose else "missing"
            raise HttpError(
                400, "invalid_value", f'purpose must be "{INPUT}", the only one here; it is {said}'
            )
        if self._file is None:
            raise HttpError(400, "missing_parameter", "the upload has no part called file")
        return self._file.keep(self._filename, purpose)

    def drop(self) -> None:
        """Forget what was not kept."""
        if self._file is not None:
            self._file.drop()

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise HttpError(400, "invalid_value", f"the upload has more than {_MOST_PARTS} parts")
        self._headers = {}

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._name = options.get(b"name", b"").decode("utf-8", errors="replace")
        if self._name != "file":
            self._fields[self._name] = bytearray()
            return
        if self._file is not None:
            raise HttpError(400, "invalid_value", "the upload has more than one file")
        name = options.get(b"filename", b"").decode("utf-8", errors="replace")
        self._filename = name[:MOST_NAME] or "upload"
        self._file = self._files.begin()

    def _data(self, data: bytes, start: int, end: int) -> None:
        piece = memoryview(data)[start:end]
        if self._name == "file" and self._file is not None:
            self._file.write(piece)
            return
        field = self._fields[self._name]
        if len(field) + len(piece) > _MOST_FIELD_BYTES:
            raise HttpError(400, "invalid_value", f"{self._name[:60]} is too long")
        field += piece

    def _ends(self) -> None:
        self._whole = True


def _malformed(why: Any) -> HttpError:
    return HttpError(400, "invalid_form", f"the upload is not multipart/form-data: {why}")
