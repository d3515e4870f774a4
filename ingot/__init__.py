"""Ingot as a library: load a quantized model, generate, stream and embed; make files, measure them.

>>> import ingot
>>> with ingot.load("model.gguf") as model:
...     print(model.generate("What is the capital of France?").text)

A model runs in a process of its own, as it does for the commands: a crash of a native library does
not end the program, and it is loaded again. Errors whose message is for the user are `IngotError`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from runtimes.errors import IngotError, ModelError, OutOfMemoryError, RequestError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from app.openai.prepare import Prepared
    from quantize.manifest import FileEntry
    from runtimes.api import EngineApi
    from runtimes.request import Completion, SamplingParams
    from runtimes.stream import Stream


__all__ = [
    "Answer",
    "BuiltFile",
    "IngotError",
    "LoadedModel",
    "ModelError",
    "OutOfMemoryError",
    "Prompt",
    "RequestError",
    "Sampling",
    "load",
    "measure",
    "quantize",
]

Prompt = str | Sequence[Mapping[str, Any]]
"""A question, or a conversation: messages with a `role` and a `content`, as OpenAI's bodies have
them."""

_RETRIES = 2  # after the death of the model's process


class Sampling(TypedDict, total=False):
    """How an answer is chosen; greedy unless a temperature is given. Of the last four one at most:
    a JSON schema as a text or an object, a regular expression, the texts to choose from, a grammar
    (Lark, in llguidance's dialect)."""

    max_tokens: int  # 512 by default
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_tokens: int
    seed: int
    stop: Sequence[str]
    ignore_eos: bool
    thinking: Literal["on", "off", "low", "medium", "high"]
    think_tokens: int
    json_schema: str | Mapping[str, Any]
    regex: str
    choices: Sequence[str]
    grammar: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its figures; ``finish_reason`` is stop, length, context or cancelled."""

    text: str
    thought: str | None  # before the text, of a model that thinks
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int  # of the prompt, that were not computed again
    completion_tokens: int
    ttft_s: float  # from the question to the first token, in seconds
    decode_tps: float | None  # tokens a second after the first; None below two


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """A file or ONNX folder, and what was measured of it; None where it was not.

    The KL divergence (nats, mean over tokens) and ``same_top`` (0 to 1) are against the original,
    ``accuracy`` (0 to 1) is on its graded questions, speeds are tokens a second on this machine.
    """

    path: Path
    recipe: str  # of a file that `measure` was given: its name
    bytes: int
    bits_per_weight: float | None
    kl: float | None
    same_top: float | None
    perplexity: float | None
    accuracy: float | None
    prefill_tps: float | None
    decode_tps: float | None  # with 1 row
    decode_tps_16: float | None  # with 16 rows together
    peak_bytes: int | None  # memory of the process
    faults: tuple[str, ...] = ()  # that `measure` has found


class LoadedModel:
    """A model in a process of its own; `load` makes it. Its methods may be called from any thread;
    questions that are asked at the same time are computed together. A context manager."""

    def __init__(self, engine: EngineApi) -> None:
        """``engine`` belongs to it from now on, and has what is not offered here."""
        self.engine = engine

    def __enter__(self) -> LoadedModel:
        """The model itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, and what it is computing."""
        self.close()

    def close(self) -> None:
        """End the process. Idempotent."""
        self.engine.close()

    @property
    def path(self) -> Path:
        """The file, or the folder of an ONNX model."""
        return self.engine.model.path

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.engine.context

    def generate(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> Answer:
        """Answer one prompt. Raises RequestError for what cannot be asked, such as a prompt that is
        too long, and IngotError for an answer that failed."""
        return self.generate_all([prompt], **sampling)[0]

    def generate_all(self, prompts: Iterable[Prompt], **sampling: Unpack[Sampling]) -> list[Answer]:
        """Answer every prompt, as many at a time as the model has slots; in the order of the
        prompts. Raises as `generate`, and then answers none."""
        params = _params(sampling)
        return [*map(_answer, self._asked([self._prepared(one, params) for one in prompts]))]

    def stream(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> Iterator[str]:
        """The answer to one prompt, piece by piece as it comes, without its thought. What is not
        read to its end is cancelled when the iterator is closed. Raises as `generate`, what cannot
        be asked at once."""
        return _pieces(self.engine.submit(self._prepared(prompt, _params(sampling)).request()))

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors of length 1, float32 of the shape [texts, width]. Raises RequestError for a file
        that gives none (ONNX) and for a text that is blank or too long."""
        import numpy as np

        from app.openai.prepare import prepare
        from app.openai.task import Embed, Task
        from runtimes.request import SamplingParams

        if blank := [i for i, text in enumerate(texts) if not text.strip()]:
            raise RequestError(f"text {blank[0]} is blank")
        params = SamplingParams()
        tasks = (Task(turns=(text,), embed=Embed()) for text in texts)
        done = self._asked([prepare(task, self.engine, params) for task in tasks])
        return np.array([one.embedding for one in done], np.float32)

    def _prepared(self, prompt: Prompt, params: SamplingParams) -> Prepared:
        """Raises RequestError."""
        from app.openai.prepare import prepare
        from app.openai.task import task_at
        from app.openai.validation import InputError

        try:
            task = task_at(prompt if isinstance(prompt, str) else [*prompt], "prompt")
        except InputError as error:
            raise RequestError(str(error)) from error
        if len(task.turns) > 1:
            raise RequestError("a prompt is a text or a conversation; several go to generate_all")
        return prepare(task, self.engine, params)

    def _asked(self, asked: Sequence[Prepared]) -> list[Completion]:
        """All completions, in order; those that were lost with the model's process are asked again.
        Raises IngotError for one that failed, and then cancels the others."""
        done: dict[int, Completion] = {}
        for _ in range(1 + _RETRIES):
            streams: dict[int, Stream] = {}
            try:
                for at, one in enumerate(asked):
                    if at not in done or done[at].retryable:
                        streams[at] = self.engine.submit(one.request())
                done |= {at: stream.result() for at, stream in streams.items()}
            finally:
                for stream in streams.values():  # does nothing to those that have ended
                    stream.cancel()
        return [_whole(done[at]) for at in range(len(asked))]


def load(
    model: str | Path,
    *,
    recipe: str | None = None,
    slots: int = 8,
    context: int | None = None,
    threads: int | None = None,
    speculation: bool = False,
    reproducible: bool = False,
) -> LoadedModel:
    """Load a model: a `.gguf` file, an ONNX folder, a folder that `quantize` wrote (``recipe``
    picks its file), or a name that `ingot models` lists.

    ``slots`` prompts are computed at a time, each with up to ``context`` tokens. The settings that
    `ingot plan` has found for the model apply. Raises ModelError for what cannot be loaded,
    OutOfMemoryError for what does not fit, and RequestError.
    """
    from app.models.library import load_engine
    from app.models.planning import choose
    from app.options import ModelOptions, PlanOptions

    choice = choose(
        str(model),
        ModelOptions(recipe=recipe, context=context, threads=threads),
        PlanOptions(speculation=speculation),
        "chat" if slots == 1 else "batch",
        slots,
        reproducible=reproducible,
    )
    return LoadedModel(load_engine(choice.file, choice.settings, choice.scheduling))


def quantize(
    model: str | Path,
    recipes: Iterable[str] = ("q4_k_m",),
    *,
    out: Path | None = None,
    measure: bool = True,
    text: Path | None = None,
    gptq: bool = False,
) -> list[BuiltFile]:
    """Make files of a model: a Hugging Face folder, `ORG/NAME` on the hub, or a GGUF file of
    floats. `quantize recipes` lists the recipes.

    They are in ``out`` (by default `MODEL-built`), each checked and, with ``measure``, compared
    with the original on ``text`` (by default the bundled one). ``gptq`` makes up for errors of
    rounding in 4 to 6 bits, and takes longer. What is there already is not built again, and an
    interrupted run goes on. Raises IngotError that says which files were not made;
    the others are there.
    """
    from quantize.build.pipeline import build
    from quantize.manifest import entry_path
    from quantize.options import MeasureOptions, Options, SourceOptions
    from quantize.progress import Reporter
    from quantize.recipes import find_recipe

    names, how = tuple(recipes), MeasureOptions(enabled=measure, text=text)
    wanted = tuple(map(find_recipe, names))
    options = Options(SourceOptions(str(model)), wanted, out=out, measure=how, gptq=gptq)
    folder, manifest = build(options, Reporter())
    made = (entry for entry in manifest.files if entry.recipe in names)
    return [_built(entry_path(folder, entry), entry) for entry in made]


def measure(
    files: Sequence[str | Path],
    original: str | Path,
    *,
    text: Path | None = None,
    speed: bool = True,
    again: bool = False,
) -> list[BuiltFile]:
    """Hold files of anybody against the model that they were made from: figures, and in ``faults``
    what is not as it should be in their tokens, chat template, settings and weights.

    ``original`` is a Hugging Face folder, `ORG/NAME` on the hub or a GGUF file of floats. What was
    measured before is not measured ``again`` unless asked. Raises ModelError or RequestError.
    """
    from app.measured import resolved
    from quantize.measure import MeasureJob
    from quantize.measure import measure as run
    from quantize.options import SourceOptions
    from quantize.progress import Reporter

    found = resolved([str(one) for one in files])
    job = MeasureJob(found, SourceOptions(str(original)), text, speed=speed, again=again)
    cards = zip(found, run(job, Reporter()), strict=True)
    return [_built(file.path, card.entry, card.faults) for file, card in cards]


def _built(path: Path, entry: FileEntry, faults: tuple[str, ...] = ()) -> BuiltFile:
    near, speed = entry.fidelity, entry.speed
    return BuiltFile(
        path=path,
        recipe=entry.recipe,
        bytes=entry.bytes,
        bits_per_weight=entry.bits_per_weight,
        kl=near.kl_mean if near else None,
        same_top=near.same_top if near else None,
        perplexity=near.perplexity.value if near else None,
        accuracy=entry.quality.task_accuracy if entry.quality else None,
        prefill_tps=speed.prefill_tps if speed else None,
        decode_tps=speed.decode_tps_1 if speed else None,
        decode_tps_16=speed.decode_tps_16 if speed else None,
        peak_bytes=speed.peak_bytes if speed else None,
        faults=faults,
    )


def _params(sampling: Sampling) -> SamplingParams:
    """Raises RequestError for a value that is out of its range, and TypeError for a name that is
    none."""
    import json

    from app.options import only_constraint
    from runtimes.request import SamplingParams

    given: dict[str, Any] = {"max_tokens": 512, **sampling}
    sources: dict[str, str] = {}
    for kind in ("json_schema", "regex", "choices", "grammar"):
        if (value := given.pop(kind, None)) is not None:
            text = value if kind != "choices" and isinstance(value, str) else json.dumps(value)
            sources[kind] = text
    several = "of json_schema, regex, choices and grammar only one can be given"
    given["stop"] = tuple(given.get("stop") or ())
    return SamplingParams(**given, constraint=only_constraint(sources, several))


def _pieces(stream: Stream) -> Iterator[str]:
    """Raises IngotError at the end of an answer that failed."""
    try:
        for chunk in stream:
            if chunk.text and not chunk.thought:
                yield chunk.text
    finally:
        stream.cancel()
    _whole(stream.result())


def _whole(done: Completion) -> Completion:
    """Raises IngotError for one that failed."""
    if done.error is not None:
        raise IngotError(done.error)
    return done


def _answer(done: Completion) -> Answer:
    return Answer(
        text=done.text,
        thought=done.thought,
        finish_reason=str(done.finish_reason),
        prompt_tokens=done.usage.prompt_tokens,
        cached_tokens=done.usage.cached_tokens,
        completion_tokens=done.usage.completion_tokens,
        ttft_s=done.timings.ttft_s,
        decode_tps=done.timings.decode_tps,
    )
