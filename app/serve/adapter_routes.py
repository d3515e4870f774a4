"""Clients load and unload LoRA adapters while the server runs: /v1/load_lora_adapter and
/v1/unload_lora_adapter, as vLLM has them. Only files of the folder that the server was given."""

from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request

from app.openai.validation import InputError
from app.serve.bodies import json_body
from app.serve.errors import HttpError
from app.serve.generate import Generator, asked_model
from app.serve.openapi import json_body as json_schema

_KIND = "adapters"  # of work on threads: it may wait for a model that loads
_NAMED = {"lora_name": {"type": "string"}, "model": {"type": "string"}}
_LOAD = json_schema(
    {
        "type": "object",
        "required": ["lora_name", "lora_path"],
        "properties": {**_NAMED, "lora_path": {"type": "string"}},
    }
)
_UNLOAD = json_schema({"type": "object", "required": ["lora_name"], "properties": _NAMED})


# OpenAI's /v1/responses, without anything that has to be stored.


# Anthropic's /v1/messages, and how many tokens one would have.


def routes(generator: Generator, folder: Path | None) -> APIRouter:
    """Both. Without ``folder`` they refuse everything."""
    router = APIRouter()
    pool = generator.pool

    @router.post("/v1/load_lora_adapter", openapi_extra=_LOAD)
    async def load(request: Request) -> dict[str, Any]:
        """Load the file ``lora_path`` of the server's folder of adapters beside ``model`` (the
        first one), which then answers as MODEL:``lora_name``."""
        body = await json_body(request)
        found, path = _allowed(folder), _text(body, "lora_path")
        model, name = asked_model(body), _text(body, "lora_name")

        def add() -> str:
            return pool.add_adapter(model, name, _file(found, path))

        return {"id": await generator.in_thread(add, _KIND), "object": "model", "loaded": True}

    @router.post("/v1/unload_lora_adapter", openapi_extra=_UNLOAD)
    async def unload(request: Request) -> dict[str, Any]:
        """Unload one that was loaded so; refused while it answers."""
        body = await json_body(request)
        _allowed(folder)
        remove = partial(pool.remove_adapter, asked_model(body), _text(body, "lora_name"))
        return {"id": await generator.in_thread(remove, _KIND), "object": "model", "loaded": False}

    return router


def _allowed(folder: Path | None) -> Path:
    if folder is None:
        raise HttpError(
            403,
            "adapters_fixed",
            "the adapters of this server are fixed; started with --adapter-dir DIR it loads files"
            " of that folder",
        )
    return folder


def _text(body: Any, key: str) -> str:
    value = body.get(key) if isinstance(body, dict) else None
    if not isinstance(value, str) or not value:
        raise InputError("invalid_value", f"{key} must be a text")
    return value


def _file(folder: Path, name: str) -> Path:
    """A file of the folder, and none that lies elsewhere."""
    try:
        known = {file.name for file in folder.iterdir() if file.is_file()}
    except OSError as error:
        raise HttpError(
            500, "internal_error", f"the folder of adapters: {error.strerror}"
        ) from None
    if name not in known:
        raise HttpError(
            404, "adapter_not_found", f"the folder of adapters has no file {name[:80]!r}"
        )
    return folder / name
