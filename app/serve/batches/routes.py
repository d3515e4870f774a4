"""/v1/files and /v1/batches, as OpenAI's clients call them. Handlers that wait for the disk
are plain functions, which FastAPI runs in threads."""

import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

import anyio
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BeforeValidator, Field
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from app.openai.validation import JsonObject
from app.serve.batches.store import BATCH_INPUT, MOST_NAME, Batch, Files, NewFile, StoredFile
from app.serve.batches.work import BatchService
from app.serve.bodies import Body, body_schema, json_body
from app.serve.errors import HttpError

# A file as it is uploaded: multipart/form-data, written to the disk as it comes.


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
        """Parse a piece of the body."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _malformed(error) from error

    def keep(self) -> StoredFile:
        """Keep the file at the end of the body."""
        if not self._whole:
            raise _malformed("it ends before its last boundary")
        unknown = self._fields.keys() - {"purpose"}
        if unknown:
            name = min(unknown)[:60]
            raise HttpError(400, "unsupported_parameter", f"{name} is not supported")
        purpose = self._fields.get("purpose", b"").decode("utf-8", errors="replace")
        if purpose != BATCH_INPUT:
            said = repr(purpose[:60]) if purpose else "missing"
            raise _invalid(f'purpose must be "{BATCH_INPUT}", the only one here; it is {said}')
        if self._file is None:
            raise HttpError(400, "missing_parameter", "the upload has no part called file")
        return self._file.keep(self._filename, BATCH_INPUT)

    def drop(self) -> None:
        """Forget what was not kept."""
        if self._file is not None:
            self._file.drop()

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise _invalid(f"the upload has more than {_MOST_PARTS} parts")
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
            raise _invalid("the upload has more than one file")
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
            raise _invalid(f"{self._name[:60]} is too long")
        field += piece

    def _ends(self) -> None:
        self._whole = True


def _invalid(said: str) -> HttpError:
    return HttpError(400, "invalid_value", said)


def _malformed(why: Any) -> HttpError:
    return HttpError(400, "invalid_form", f"the upload is not multipart/form-data: {why}")


_PIECE = 1 << 18
_MOST_PAIRS = 16  # of metadata, as OpenAI has them
_UPLOAD = body_schema(
    {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": ["batch"]},
    },
    *("file", "purpose"),
    media="multipart/form-data",
)
_Item = TypeVar("_Item", StoredFile, Batch)


def _few(metadata: Any) -> Any:
    if isinstance(metadata, dict) and len(metadata) > _MOST_PAIRS:  # before any of them is read
        raise ValueError(f"there are more than {_MOST_PAIRS} pairs")
    return metadata


class BatchBody(Body):
    """Body of POST /v1/batches."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    completion_window: Literal["24h"]
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None,
        BeforeValidator(_few),
        Field(max_length=_MOST_PAIRS),
    ] = None


def routes(service: BatchService) -> APIRouter:
    """Router for files and batches."""
    router = APIRouter()
    files = service.files

    @router.post("/v1/files", openapi_extra=_UPLOAD)
    async def create_file(request: Request) -> JsonObject:
        """Upload the input of a batch."""
        return (await receive(request, files)).as_json()

    @router.get("/v1/files")
    def list_files(
        purpose: str | None = None,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
    ) -> JsonObject:
        """Inputs and results."""
        found = [file for file in files.all() if purpose in (None, file.purpose)]
        return _page(found if order == "asc" else found[::-1], after, limit)

    @router.get("/v1/files/{file_id}")
    def retrieve_file(file_id: str) -> JsonObject:
        """One file."""
        return files.get(file_id).as_json()

    @router.get("/v1/files/{file_id}/content")
    def file_content(file_id: str) -> Response:
        """The bytes of a file."""
        content = files.open(file_id)
        size = os.fstat(content.fileno()).st_size
        headers = {"Content-Length": str(size)}
        return StreamingResponse(_pieces(content, size), 200, headers, "application/octet-stream")

    @router.delete("/v1/files/{file_id}")
    def delete_file(file_id: str) -> JsonObject:
        """Forget a file. A batch that runs keeps its input."""
        files.delete(file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    @router.post("/v1/batches", openapi_extra=BatchBody.described())
    async def create_batch(request: Request) -> JsonObject:
        """Begin to answer the requests of a file."""
        asked = BatchBody.read(await json_body(request))
        given = (asked.input_file_id, asked.endpoint, asked.metadata)
        return (await run_in_threadpool(service.create, *given)).as_json()

    @router.get("/v1/batches")
    def list_batches(
        after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> JsonObject:
        """The newest first."""
        return _page(service.all()[::-1], after, limit)

    @router.get("/v1/batches/{batch_id}")
    def retrieve_batch(batch_id: str) -> JsonObject:
        """How far a batch is."""
        return service.get(batch_id).as_json()

    @router.post("/v1/batches/{batch_id}/cancel")
    def cancel_batch(batch_id: str) -> JsonObject:
        """End it; what is answered stays."""
        return service.cancel(batch_id).as_json()

    return router


def _page(items: Sequence[_Item], after: str | None, limit: int) -> JsonObject:
    """OpenAI's list object: at most ``limit`` items behind the one that is called ``after``."""
    begin = 0
    if after is not None:
        at = next((i for i, item in enumerate(items) if item.id == after), None)
        if at is None:
            raise _invalid(f"after: there is no {after[:60]!r} in this list")
        begin = at + 1
    shown_ = items[begin : begin + limit]
    return {
        "object": "list",
        "data": [item.as_json() for item in shown_],
        "first_id": shown_[0].id if shown_ else None,
        "last_id": shown_[-1].id if shown_ else None,
        "has_more": begin + limit < len(items),
    }


def _pieces(content: BinaryIO, size: int) -> Iterator[bytes]:
    with content:
        while size > 0 and (piece := content.read(min(_PIECE, size))):
            size -= len(piece)
            yield piece
