"""From a model file to a loaded runner."""

import logging
from dataclasses import replace

from runtimes.engine.draft import Draft
from runtimes.errors import IngotError, ModelError, OutOfMemoryError, RequestError
from runtimes.machine.cpu import available_cores
from runtimes.machine.hardware import memory_now
from runtimes.machine.selftest import require
from runtimes.models.memory import (
    DEFAULT_CONTEXT,
    draft_file,
    draft_settings,
    require_fit,
    spare_draft,
    with_defaults,
)
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of, stretched
from runtimes.runner import Runner, Tokenizer
from runtimes.settings import PROMPT_CHUNK, RunnerSettings

logger = logging.getLogger(__name__)


def load_runner(model: ModelFile, settings: RunnerSettings) -> Runner:
    """The runner for ``model``, with what ``settings`` leaves open filled in.

    Raises ModelError, RuntimeMissingError, OutOfMemoryError, or RequestError for settings that the
    runtime does not have. ``settings.draft`` is not loaded.
    """
    settings, model = replace(settings, draft=None), stretched(model, settings.rope)
    runtime = backend_of(model)
    if settings.reproducible:
        if settings.unified_kv:
            raise RequestError(
                "reproducible answers need a cache for each slot: in a unified one, a row's last "
                "digits depend on the others"
            )
        settings = replace(settings, batch=max(settings.batch, PROMPT_CHUNK), device_sampling=False)
    if settings.kv_tokens is not None:
        if "kv_tokens" not in runtime.knows or not settings.unified_kv:
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
    settings = runtime.fitted(model, settings)
    if not runtime.on_gpu(settings):
        require_fit(model, settings, memory_now()[1])
    return runtime.open(model, settings)


def load_with_draft(model: ModelFile, settings: RunnerSettings) -> tuple[Runner, Draft | None]:
    """The runner of ``load_runner``, and the draft that ``settings`` names: None where memory is
    short for both, or nothing could verify what it guesses, which is logged.

    Raises as ``load_runner``; ModelError also for a draft that does not fit the model.
    """
    if settings.draft is not None and not backend_of(model).on_gpu(settings):
        settings = spare_draft(model, settings, memory_now()[1])
    runner = load_runner(model, settings)
    try:
        return runner, _load_draft(model, runner, settings)
    except BaseException:
        runner.close()
        raise


def _load_draft(model: ModelFile, runner: Runner, settings: RunnerSettings) -> Draft | None:
    if settings.draft is None:
        return None
    file, one = draft_file(settings.draft), runner.capabilities
    if file.encodes:
        raise ModelError(f"{file.path} cannot be a draft: it embeds texts and continues none")
    if settings.reproducible or not one.verifies:
        logger.warning(
            "without the draft %s: %s cannot verify guesses%s",
            file.path.name,
            model.path.name,
            " in reproducible steps" if settings.reproducible else "",
        )
        return None
    asked = replace(settings, slots=one.slots, context=one.context)
    try:
        other = load_runner(file, draft_settings(asked))
    except OutOfMemoryError as error:
        logger.warning("without the draft %s: %s", file.path.name, error)
        return None
    try:
        if not other.capabilities.can_trim:
            raise ModelError(
                f"{file.path} cannot be a draft: it cannot forget a wrong guess (sliding window or"
                " recurrent state)"
            )
        _require_same(file, other.tokenizer, model, runner.tokenizer)
        return Draft(file.path.name, other, one.vocab_size)
    except IngotError:
        other.close()
        raise


def _require_same(draft: ModelFile, its: Tokenizer, model: ModelFile, own: Tokenizer) -> None:
    """Raise ModelError, naming the first difference, where a token id means other bytes to the
    draft. Ids that stand for nothing, to which files pad their tables, do not count."""
    for token in range(max(its.vocab_size, own.vocab_size)):
        theirs = its.token_bytes(token) if token < its.vocab_size else b""
        ours = own.token_bytes(token) if token < own.vocab_size else b""
        if theirs != ours:
            raise ModelError(
                f"{draft.path} cannot be the draft of {model.path}: token {token} is"
                f" {_shown(theirs)} to it and {_shown(ours)} to the model; a draft has the model's"
                " vocabulary"
            )


def _shown(piece: bytes) -> str:
    return repr(piece.decode("utf-8", errors="backslashreplace")) if piece else "nothing"
