"""How a model file is loaded for chats, as was said in the picker; remembered by file."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from app.here import at_home, given_text, real
from app.models.planning import LoadChoice
from app.options import FLAGS, ModelOptions, PlanOptions
from runtimes.backend import MemoryEstimate
from runtimes.chat import render_chat
from runtimes.errors import RequestError
from runtimes.machine.state_file import load_state, save_entry
from runtimes.models.memory import estimate
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of
from runtimes.settings import KvType, RunnerSettings, kv_pair

_STATE, _AT_MOST = "load_settings", 200


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """None: as planned. Names are those of the options of the command line."""

    context: int | None = None
    threads: int | None = None
    device: str | None = None
    gpu_layers: int | None = None
    kv_type: KvType | None = None
    template: str | None = None  # a file, or a known name


def known_to(file: ModelFile) -> tuple[str, ...]:
    """The settings that the file's runtime has."""
    own = {"gpu_layers", "kv_type"} - backend_of(file).knows
    return tuple(item.name for item in fields(LoadSettings) if item.name not in own)


def remembered(path: Path) -> LoadSettings:
    """Return the settings that were last used with this file, without fields that this version does
    not accept.
    """
    kept = load_state(_STATE).get(str(real(path)))
    good: dict[str, Any] = {}
    if not isinstance(kept, dict):
        return LoadSettings()
    for item in fields(LoadSettings):
        with suppress(KeyError, RequestError):
            good[item.name] = _value(item.name, str(kept[item.name]))
    return LoadSettings(**good)


def remember(path: Path, settings: LoadSettings) -> None:
    """Keep it; nothing when all is as planned."""
    said = {name: value for name, value in asdict(settings).items() if value is not None}
    save_entry(_STATE, str(real(path)), said or None, _AT_MOST)


def read(texts: Mapping[str, str], file: ModelFile) -> tuple[LoadSettings, dict[str, str]]:
    """Parse the form's texts; errors are keyed by field. An empty field is left to the planner. A
    chat template is read, too, to check that it is one.
    """
    good: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for item in fields(LoadSettings):
        text = texts.get(item.name, "").strip()
        if not text:
            continue
        try:
            if item.name == "template":
                read_template(text)
            good[item.name] = _value(item.name, text, file)
        except RequestError as error:
            errors[item.name] = str(error)
    return LoadSettings(**good), errors


def _value(name: str, text: str, file: ModelFile | None = None) -> int | str:
    if name == "kv_type":
        kv_pair(text)
        return text
    if name in ("template", "device"):
        return text  # which devices there are, is known to the runtime alone
    bounds = FLAGS[name]
    least, most = bounds["min"], bounds.get("max")
    if name == "context" and file is not None:
        most = file.context_length
    allowed = f"a whole number from {least:,}" + (f" to {most:,}" if most is not None else "")
    try:
        value = int(text.replace(",", ""))
    except ValueError:
        raise RequestError(allowed) from None
    if value < least or (most is not None and value > most):
        raise RequestError(allowed)
    return value


def applied(
    choice: LoadChoice, said: LoadSettings, options: ModelOptions, settings: PlanOptions
) -> LoadChoice:
    """``choice`` with what was said of its file, where the options do not say otherwise."""
    given = {**asdict(options), **asdict(settings)}
    wanted = {
        name: value
        for name, value in asdict(said).items()
        if name != "template" and name in known_to(choice.file) and value is not None
    }
    if wanted.get("device", "cpu") != "cpu":  # the plan may have put no layers on one
        wanted.setdefault("gpu_layers", RunnerSettings().gpu_layers)
    changes = {name: value for name, value in wanted.items() if given.get(name) is None}
    return replace(choice, settings=replace(choice.settings, **changes))


def memory(choice: LoadChoice, said: LoadSettings) -> MemoryEstimate:
    """Bytes that the file takes so. Raises ModelError for one that cannot be read."""
    changed = applied(choice, said, ModelOptions(), PlanOptions())
    return estimate(choice.file, changed.settings)


# Chat templates that are given instead of a model's own: a file of Jinja, or a known one's name. A
# model answers well only in the format that it was trained with; for a base model none is right.

_MOST_BYTES = 2**20

# As the models' makers publish them, without tools.
KNOWN = {
    "chatml": (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}"
        "<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
        "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else 'user' }}\n"
        "{{ message['content'] | trim }}<end_of_turn>\n"
        "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
}


def read_template(name: str) -> str:
    """The template that ``name`` means: a file, or one of ``KNOWN``. Raises RequestError for none
    of these, a file that cannot be read, and a template that does not compile or renders nothing.
    """
    path = at_home(name)
    if not path.is_file():
        if name in KNOWN:
            return KNOWN[name]
        names = ", ".join(KNOWN)
        raise RequestError(
            f"there is no chat template {name}: no such file; known names are {names}"
        )
    template = given_text(path, _MOST_BYTES)
    try:
        text = render_chat(template, [{"role": "user", "content": "Hello"}])
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error
    if "Hello" not in text:
        raise RequestError(f"{path} leaves out what the user says")
    return template
