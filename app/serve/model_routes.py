"""Routes about the server: /, /v1/models, /v1/tokenize, /health, /ready, /metrics; and of vLLM's
/v1/load_lora_adapter and /v1/unload_lora_adapter, by which clients load and unload LoRA
adapters."""

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ConfigDict, Field

from app.openai.request import body_task
from app.openai.task import Task
from app.openai.validation import Given, JsonObject, as_unicode
from app.serve.batches.work import BatchService
from app.serve.bodies import Body, body_schema, json_body, read_task
from app.serve.errors import HttpError
from app.serve.generate import Generator, asked_model
from app.serve.observe import Observer
from runtimes.request import SamplingParams

# What is told of a loaded file.
_META = tuple(
    "name architecture quantization nbytes context_length layers heads kv_heads head_dim vocab_size"
    " sliding_window chat_template".split()
)
_TEXT = body_schema({"prompt": {"type": "string"}})
_KIND = "adapters"  # of work on threads: it may wait for a model that loads


class AdapterBody(Body):
    """An adapter of a model; other servers read more."""

    model_config = ConfigDict(strict=True, extra="ignore")
    model: str | None = None
    lora_name: Annotated[str, Field(min_length=1)]


class AdapterFileBody(AdapterBody):
    """An adapter's name and file."""

    lora_path: Annotated[str, Field(min_length=1)]


def routes(
    generator: Generator,
    observer: Observer,
    batches: BatchService,
    adapters: Path | None,
) -> APIRouter:
    """Router for models, figures, health, and adapters, which are files of a folder or fixed."""
    router = APIRouter()
    pool, begun = generator.pool, int(time.time())

    def about(name: str) -> JsonObject:
        said: JsonObject = {
            "id": name,
            "object": "model",
            "created": begun,
            "owned_by": "ingot",
            "loaded": False,
        }
        own = pool.model_of(name)
        if own != name:  # an alias, or the name with an adapter
            said["parent"] = own
        served = pool.loaded().get(own)
        if served is not None:
            file, engine = served.choice.file, served.engine
            said |= {
                "loaded": True,
                "runtime": file.runtime,
                "file": file.path.name,
                "context": engine.context,
                "slots": engine.slots,
                "meta": {name: getattr(file, name) for name in _META},
            }
        return said

    @router.get("/")
    @router.head("/", include_in_schema=False)
    async def root() -> JsonObject:
        """Name the server: clients ask before their first request."""
        return {"server": "ingot", "models": list(pool.names())}

    @router.get("/v1/models")
    async def models() -> JsonObject:
        """All models, loaded or not."""
        return {"object": "list", "data": [about(name) for name in pool.names()]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> JsonObject:
        """One of them."""
        if name not in pool.names():
            raise HttpError(404, "model_not_found", f"there is no model {name[:80]!r} here")
        return about(name)

    @router.get("/v1/stats")
    async def stats() -> JsonObject:
        """The figures of the loaded models' engines."""
        return {"models": await generator.in_thread(partial(_stats, generator), "stats")}

    @router.post("/v1/tokenize", openapi_extra=_TEXT)
    async def tokenize(request: Request) -> Response:
        """The token ids of ``prompt``, or of ``messages`` by the model's chat template."""
        body = await json_body(request)
        name = asked_model(body)
        task_of = await read_task(request, partial(_asked, body, generator.defaults))
        _, ids = await generator.tokens(name, task_of)
        return JSONResponse({"tokens": ids, "count": len(ids)})

    @router.get("/health")
    async def health() -> dict[str, str]:
        """The server answers; what of it does not work."""
        problem = batches.problem()
        return {"status": "ok"} if problem is None else {"status": "degraded", "batches": problem}

    @router.get("/ready")
    async def ready() -> Response:
        """Whether a model is loaded."""
        loaded = list(pool.loaded())
        status = "ready" if loaded else "loading"
        return JSONResponse({"status": status, "loaded": loaded}, 200 if loaded else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        """Figures for Prometheus."""
        work = partial(generate_latest, observer.registry)
        text = await generator.in_thread(work, "stats")
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @router.post("/v1/load_lora_adapter", openapi_extra=AdapterFileBody.described())
    async def load(request: Request) -> JsonObject:
        """Load the file ``lora_path`` of the server's folder of adapters beside ``model`` (the
        first one), which then answers as MODEL:``lora_name``."""
        asked, folder = await json_body(request), _allowed(adapters)
        body = AdapterFileBody.read(asked)

        def add() -> str:
            return pool.add_adapter(body.model, body.lora_name, _file(folder, body.lora_path))

        return {"id": await generator.in_thread(add, _KIND), "object": "model", "loaded": True}

    @router.post("/v1/unload_lora_adapter", openapi_extra=AdapterBody.described())
    async def unload(request: Request) -> JsonObject:
        """Unload one that was loaded so; refused while it answers."""
        asked, _ = await json_body(request), _allowed(adapters)
        body = AdapterBody.read(asked)
        remove = partial(pool.remove_adapter, body.model, body.lora_name)
        return {"id": await generator.in_thread(remove, _KIND), "object": "model", "loaded": False}

    return router


def _stats(generator: Generator) -> JsonObject:
    loaded = generator.pool.loaded().items()
    return {name: asdict(served.engine.stats()) for name, served in loaded}


def _asked(body: Given, defaults: SamplingParams) -> Task:
    if isinstance(body.get("prompt"), str):
        return Task(turns=(as_unicode(body["prompt"], "prompt"),), raw=True)
    return body_task(body, "chat", defaults, served=True)


def _allowed(folder: Path | None) -> Path:
    if folder is None:
        raise HttpError(
            403,
            "adapters_fixed",
            "the adapters of this server are fixed; started with --adapter-dir DIR it loads files"
            " of that folder",
        )
    return folder


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
