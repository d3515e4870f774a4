"""Options that all comparisons of `ingot bench` share: the size of the work, and other programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from app.options import option
from runtimes.settings import MOST_SLOTS, FlashAttention, KvType, RunnerSettings, kv_pair

BATCH = 512  # tokens of a step on both sides of every comparison; llama.cpp's own n_ubatch
# llama.cpp rounds a sequence's cells up to this many (llama_context's constructor); asking for a
# multiple makes every tool hold the same.
_CELLS = 256

_SWEEP = "Sweep"
_COMPARING = {"rich_help_panel": "Comparisons"}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Flags of the command, and below what the command makes of them."""

    panel: ClassVar = None
    what: list[str] | None = option(
        None,
        "speed (the default), native, churn, server, genai, prefix, strategies, "
        "reproducible, sampling, constrained, speculation, adapters, worker, batch, "
        "memory, plan or tui; repeatable, or separated by commas.",
        metavar="NAME",
    )
    batch_sizes: str | None = option(
        None, "speed and prefix: rows that decode together, separated by commas; speed has 1,8."
    )
    depth: str | None = option(
        None,
        "Tokens that rows have behind them, separated by commas: of speed, which has"
        " 0,1024,4096, native, server and prefix.",
    )
    flash_attention: FlashAttention = option(
        "auto", "llama.cpp's kernel of attention, of our side."
    )
    prompt_tokens: int = option(128, "Tokens of a prompt.", min=1)
    decode_tokens: int = option(32, "Tokens a row decodes.", min=2)
    repeats: int = option(5, "Runs of each; medians are shown.", min=1)
    rows: int = option(16, "Slots.", min=1, max=MOST_SLOTS, **_COMPARING)
    requests: int = option(
        64,
        "Requests of server and batch (without --prompts), prefix, strategies and reproducible.",
        min=1,
        **_COMPARING,
    )
    steps: int = option(
        2000, "genai: decode steps over which memory is watched.", min=1, **_COMPARING
    )
    seconds: float = option(60.0, "tui: length of each recorded stream.", min=5, **_COMPARING)
    llama_bench: Path | None = option(
        None,
        "native with --depth: the program llama-bench.",
        envvar="INGOT_LLAMA_BENCH",
        **_COMPARING,
    )
    batched_bench: Path | None = option(
        None,
        "native: the program llama-batched-bench.",
        envvar="INGOT_BATCHED_BENCH",
        **_COMPARING,
    )
    llama_server: Path | None = option(
        None,
        "server and batch: the program llama-server.",
        envvar="INGOT_LLAMA_SERVER",
        **_COMPARING,
    )
    prompts: Path | None = option(
        None, "server and batch: prompts, one a line, or .jsonl; random ones without.", **_COMPARING
    )
    sweep: bool = option(
        False,
        "One row at a time against many at once: --batch-sizes (1 to 64), --lengths, --kv-types,"
        " each file of the folder; goes on where it was ended.",
        rich_help_panel=_SWEEP,
    )
    length: list[str] | None = option(
        None,
        "Tokens of a prompt and of its answer (16+128); repeatable, or separated by commas.",
        "--lengths",
        metavar="N+N",
        rich_help_panel=_SWEEP,
    )
    kv_type: list[str] | None = option(
        None,
        "Types of llama.cpp's keys and values, also of speed without --sweep; f16 without.",
        "--kv-types",
        metavar="TYPE",
        check=kv_pair,
        rich_help_panel=_SWEEP,
    )
    against: list[str] | None = option(
        None,
        "Who else does the same work: ingot-serve, llama-server[=PROGRAM],"
        " llama-batched-bench[=PROGRAM], llama-cpp-python, onnxruntime-genai,"
        " openvino-genai[=FOLDER], transformers=FOLDER, or a server's URL; repeatable.",
        metavar="NAME",
        rich_help_panel=_SWEEP,
    )
    output: list[Path] | None = option(
        None,
        "Also write a page (.html), a picture (.svg, .png) or the figures (.json); repeatable.",
        metavar="FILE",
        rich_help_panel=_SWEEP,
    )
    draft: str | None = option(
        None, "speculation: a draft model, named as MODEL is.", metavar="FILE", **_COMPARING
    )

    threads: int | None = None
    depths: tuple[int, ...] | None = None  # tokens in rows' caches; as each benchmark has them
    sizes: tuple[int, ...] | None = None  # rows together, where there are several
    lengths: tuple[tuple[int, int], ...] | None = None  # of prompts and answers
    kv_types: tuple[KvType, ...] = ("f16",)

    @property
    def cores(self) -> int:
        """Threads that every side uses."""
        from runtimes.machine.cpu import available_cores

        return self.threads or available_cores()

    def kv_types_of(self, runtime: str) -> tuple[KvType, ...]:
        """Types of the cache to measure with this runtime."""
        from runtimes.models.registry import backend

        return self.kv_types if "kv_type" in backend(runtime).knows else ("f16",)

    def settings(
        self, tokens: int | None = None, *, rows: int | None = None, unified: bool = False
    ) -> RunnerSettings:
        """A runner for ``rows`` slots that hold ``tokens`` each, rounded up as llama.cpp does;
        without, a prompt, the token that comes with its prefill, and those that are timed."""
        tokens = tokens or self.prompt_tokens + self.decode_tokens + 1
        return RunnerSettings(
            slots=rows or self.rows,
            context=-(-tokens // _CELLS) * _CELLS,
            batch=BATCH,
            threads=self.cores,
            unified_kv=unified,
            flash_attention=self.flash_attention,
        )
