"""Runs in a child process: a built file on its own runtime."""

from collections.abc import Sequence
from pathlib import Path

from quantize.manifest import Speed
from quantize.quality.tasks import Question
from runtimes.engine.engine import Engine
from runtimes.errors import ModelError
from runtimes.models.modelfile import ModelFile
from runtimes.request import FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings

_QUESTION = "What is the capital of France?"
_CONTEXT = 1024
_ROWS = 16
_SAMPLE_S = 1.0


def ask(path: Path) -> str:
    """Load ``path`` and ask one question; raises ModelError unless tokens come back."""
    with Engine.load(path, RunnerSettings(slots=1, context=256)) as engine:
        if engine.model.chat_template:
            prompt = engine.encode_chat([{"role": "user", "content": _QUESTION}])
        else:
            prompt = engine.encode(_QUESTION)
        done = engine.submit(Request(prompt, SamplingParams(max_tokens=12))).result()
        if done.finish_reason is FinishReason.ERROR or not done.token_ids:
            raise ModelError(f"no answer to a question: {done.error or done.finish_reason}")
        return done.text


def answer(path: Path, questions: Sequence[Question], slots: int) -> list[str]:
    """Greedy answers to the graded questions, in order."""
    context = min(ModelFile.read(path).context_length, _CONTEXT)
    with Engine.load(path, RunnerSettings(slots=slots, context=context)) as engine:
        streams = [
            engine.submit(
                Request(
                    engine.encode_chat(question.messages),
                    SamplingParams(max_tokens=question.max_tokens),
                )
            )
            for question in questions
        ]
        completions = [stream.result() for stream in streams]
    failed = [done for done in completions if done.finish_reason is FinishReason.ERROR]
    if failed:
        raise ModelError(f"{len(failed)} graded questions failed, the first: {failed[0].error}")
    return [done.text for done in completions]


def speed(path: Path) -> Speed:
    """Prefill and decode with 1 and 16 rows, load time and peak memory."""
    from quantize.quality.peak import GpuPeak, peak_resident
    from runtimes.planner.measure import Workload, measure_speed

    with GpuPeak() as gpu:
        figures = measure_speed(
            path, Workload(rows=(1, _ROWS), sample_s=_SAMPLE_S), batch_prefill=True
        )
    return Speed(
        prefill_tps=float(figures.prefill_tps),
        prefill_tps_16=float(figures.batch_prefill[_ROWS]),
        decode_tps_1=float(figures.decode_tps[1]),
        decode_tps_16=float(figures.decode_tps[_ROWS]),
        load_s=figures.load_s,
        peak_bytes=peak_resident() + gpu.nbytes,
        ranges={
            "prefill_tps": _range(figures.prefill_samples),
            "decode_tps_1": _range(figures.decode_samples[1]),
            "decode_tps_16": _range(figures.decode_samples[_ROWS]),
        },
        others=figures.others,
    )


def _range(samples: Sequence[float]) -> tuple[float, float]:
    return min(samples), max(samples)
