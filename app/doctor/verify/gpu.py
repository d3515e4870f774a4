"""What NVIDIA GPUs did while rows decoded, for the report and for people."""

from typing import Any

from runtimes.machine.gpu_watch import GpuWatch, tokens_per_joule


def gpu_figures(watch: GpuWatch, tps: float) -> list[dict[str, Any]]:
    """Of each GPU the means, and the tokens a joule at ``tps`` tokens a second."""
    return [
        {
            "name": use.name,
            "percent": use.percent,
            "watts": use.watts,
            "memory_used_bytes": use.memory_used,
            "tokens_per_joule": tokens_per_joule(tps, use.watts),
        }
        for use in watch.uses.values()
    ]


def gpu_words(watch: GpuWatch, tps: float) -> str:
    """The same for people; empty without a GPU that tells."""
    return "".join(
        f" (GPU {one['percent']:.0f}% busy, {one['watts']:.0f} W,"
        f" {one['tokens_per_joule']:.1f} tokens/J)"
        for one in gpu_figures(watch, tps)
        if one["percent"] is not None and one["watts"]
    )
