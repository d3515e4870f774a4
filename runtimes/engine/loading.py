"""From a model file to a loaded runner."""

from dataclasses import replace

from runtimes.errors import RequestError
from runtimes.machine.cpu import available_cores
from runtimes.machine.hardware import memory_now
from runtimes.machine.selftest import require
from runtimes.models.memory import DEFAULT_CONTEXT, require_fit, with_defaults
from runtimes.models.modelfile import ModelFile
from runtimes.runner import Runner, Tokenizer
from runtimes.settings import PROMPT_CHUNK, RunnerSettings


def load_runner(model: ModelFile, settings: RunnerSettings) -> tuple[Runner, Tokenizer]:
    """The runner for ``model``, with what ``settings`` leaves open filled in.

    Raises ModelError, RuntimeMissingError, OutOfMemoryError, or RequestError for settings that the
    runtime does not have.
    """
    if settings.reproducible:
        if settings.unified_kv:
            raise RequestError(
                "reproducible answers need a cache for each slot: in a unified one, a row's last "
                "digits depend on the others"
            )
        settings = replace(settings, batch=max(settings.batch, PROMPT_CHUNK), device_sampling=False)
    if settings.kv_tokens is not None:
        if "kv_tokens" not in model.backend.knows or not settings.unified_kv:
            raise RequestError(
                "a budget for all slots together (kv_tokens) needs llama.cpp's unified cache; "
                "elsewhere each slot has room of its own: lower the slots or the context"
            )
        context = min(settings.context or DEFAULT_CONTEXT, settings.kv_tokens)
        settings = replace(settings, context=context)
    settings = replace(
        with_defaults(model, settings),
        threads=settings.threads or available_cores(),
        extra_buffers=require(model.runtime).extra_buffers and settings.extra_buffers,
    )
    if not model.backend.on_gpu(settings):
        require_fit(model, settings, memory_now()[1])
    return model.backend.open(model, settings)
