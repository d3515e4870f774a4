"""/v1/files and /v1/batches, as OpenAI's clients call them. What waits for the disk does so in
threads: plain functions are run in one."""

import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.openai.request import ENDPOINTS
from app.openai.validation import as_unicode, kind, shown
from app.serve.batches.files import StoredFile
from app.serve.batches.record import Batch
from app.serve.batches.service import BatchService
from app.serve.batches.upload import receive
from app.serve.bodies import json_body
from app.serve.errors import HttpError
from app.serve.openapi import ANY_BODY

_PIECE = 1 << 18
_MOST_PAIRS, _MOST_KEY, _MOST_VALUE = 16, 64, 512  # of metadata, as OpenAI has them
_BATCH_FIELDS = frozenset({"input_file_id", "endpoint", "completion_window", "metadata"})
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                    },
                }
            }
        },
    }
}
_Item = TypeVar("_Item", StoredFile, Batch)


def routes(service: BatchService) -> APIRouter:
    """All of them."""
    router = APIRouter()
    files = service.files

    @router.post("/v1/files", openapi_extra=_UPLOAD)
    async def create_file(request: Request) -> dict[str, Any]:
        """Upload the input of a batch."""
        return (await receive(request, files)).as_json()

    @router.get("/v1/files")
    def list_files(
        purpose: str | None = None,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        """Inputs and results."""
        found = [file for file in files.all() if purpose in (None, file.purpose)]
        return _page(found if order == "asc" else found[::-1], after, limit)

    @router.get("/v1/files/{file_id}")
    def retrieve_file(file_id: str) -> dict[str, Any]:
        """One file."""
        return files.get(file_id).as_json()

    @router.get("/v1/files/{file_id}/content")
    def file_content(file_id: str) -> Response:
        """Its bytes."""
        content = files.open(file_id)
        size = os.fstat(content.fileno()).st_size
        headers = {"Content-Length": str(size)}
        return StreamingResponse(_pieces(content, size), 200, headers, "application/octet-stream")

    @router.delete("/v1/files/{file_id}")
    def delete_file(file_id: str) -> dict[str, Any]:
        """Forget a file. A batch that runs keeps its input."""
        files.delete(file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    @router.post("/v1/batches", openapi_extra=ANY_BODY)
    async def create_batch(request: Request) -> dict[str, Any]:
        """Begin to answer the requests of a file."""
        asked = _asked(await json_body(request))
        return (await run_in_threadpool(service.create, *asked)).as_json()

    @router.get("/v1/batches")
    def list_batches(
        after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> dict[str, Any]:
        """The newest first."""
        return _page(service.all()[::-1], after, limit)

    @router.get("/v1/batches/{batch_id}")
    def retrieve_batch(batch_id: str) -> dict[str, Any]:
        """How far a batch is."""
        return service.get(batch_id).as_json()

    @router.post("/v1/batches/{batch_id}/cancel")
    def cancel_batch(batch_id: str) -> dict[str, Any]:
        """End it; what is answered stays."""
        return service.cancel(batch_id).as_json()

    return router


def _page(items: Sequence[_Item], after: str | None, limit: int) -> dict[str, Any]:
    """OpenAI's list object: at most ``limit`` items behind the one that is called ``after``."""
    begin = 0
    if after is not None:
        at = next((i for i, item in enumerate(items) if item.id == after), None)
        if at is None:
            raise HttpError(400, "invalid_value", f"after: there is no {after[:60]!r} in this list")
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


def _asked(body: Any) -> tuple[str, str, dict[str, str] | None]:
    """Input, endpoint and metadata of a batch. Raises HttpError or InputError."""
    if not isinstance(body, dict):
        raise HttpError(400, "wrong_type", f"the body must be an object, not {kind(body)}")
    unknown = [n for n, value in body.items() if n not in _BATCH_FIELDS and value is not None]
    if unknown:
        raise HttpError(400, "unsupported_parameter", f"{unknown[0][:60]!r} is not supported")
    file, endpoint = body.get("input_file_id"), body.get("endpoint")
    if not isinstance(file, str):
        raise HttpError(400, "missing_parameter", f"input_file_id must be a text, not {kind(file)}")
    if not isinstance(endpoint, str) or endpoint not in ENDPOINTS:
        known = " or ".join(ENDPOINTS)
        raise HttpError(400, "invalid_value", f"endpoint must be {known}, not {shown(endpoint)}")
    window = body.get("completion_window")
    if window != "24h":
        raise HttpError(
            400, "invalid_value", f'completion_window must be "24h", not {shown(window)}'
        )
    return file, endpoint, _metadata(body.get("metadata"))


def _metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MOST_PAIRS:
        raise HttpError(
            400, "invalid_value", f"metadata must be an object of at most {_MOST_PAIRS} texts"
        )
    for name, text in value.items():
        if not isinstance(text, str) or len(name) > _MOST_KEY or len(text) > _MOST_VALUE:
            raise HttpError(
                400,
                "invalid_value",
                f"metadata: names are texts of at most {_MOST_KEY} characters, values texts of at"
                f" most {_MOST_VALUE}",
            )
        as_unicode(name, "metadata")
        as_unicode(text, "metadata")
    return value
