"""A run and a forecast in lines for people; nothing is told by colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.builds.progress import Melt, Stage, StageState, State
from app.figures import duration
from quantize.hub.store import human

if TYPE_CHECKING:
    from app.builds.forecast import Forecast

_BAR = 12  # characters
_SIGNS = {StageState.RUNNING: "▶", StageState.DONE: "✓", StageState.FAILED: "✗"}
_ENDS = {
    State.DONE: "done",
    State.PARTLY: "done, but not every file could be made or is good enough",
    State.STOPPED: "stopped; starting it again resumes from what is finished",
    State.FAILED: "failed; starting it again resumes from what is finished",
}


def headline(melt: Melt, now: float) -> str:
    """The run in one line. ``now`` is in seconds since 1970."""
    files = f"{melt.finished} of {len(melt.recipes)} file{'s' * (len(melt.recipes) > 1)} ready"
    if melt.state is State.RUNNING:
        since = f"running {clock(now - melt.begin)}" if melt.begin else "starting"
        return f"{since}, {files}"
    return f"{_ENDS[melt.state]} ({duration(melt.seconds)}, {files})"


def recipe_lines(melt: Melt) -> list[str]:
    """Each recipe with its state, and what is known of its file."""
    width = max(map(len, melt.recipes), default=0)
    lines = []
    for recipe in melt.recipes:
        state = melt.state_of(recipe)
        more = ""
        if state is State.RUNNING:
            more = next(s.text for s in reversed(melt.running()) if s.recipe == recipe)
        elif state is State.KEPT_BACK:
            more = melt.kept_back[recipe]
        elif state is State.DONE and recipe in melt.sizes:
            more = human(melt.sizes[recipe])
        lines.append(f"  {recipe:<{width}}  {state.value}{f': {more}' if more else ''}")
    return lines


def stage_line(stage: Stage, now: float) -> str:
    """A stage: its sign, and its time, or while it runs how far it is and what is left."""
    text = f"{'  ' * stage.depth}{_SIGNS[stage.state]} {stage.text}"
    if stage.state is not StageState.RUNNING:
        return f"{text} · {duration(stage.seconds or 0.0)}"
    parts = []
    if stage.share is not None and stage.done:
        parts.append(f"{bar(stage.share, _BAR)} {stage.share:.0%}")
    elif stage.done:
        parts.append(_amount(stage.done, stage.unit))
    elif stage.step:
        parts.append(stage.step)
    if stage.rate is not None:
        parts.append(f"{_amount(stage.rate, stage.unit)}/s")
    if stage.seconds_left is not None:
        parts.append(f"{clock(stage.seconds_left)} left")
    else:
        parts.append(clock(now - stage.begin))
    return f"{text} · {', '.join(parts)}"


def clock(seconds: float) -> str:
    """Such as 0:07 or 1:02:03; changes once a second."""
    minutes, rest = divmod(int(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bar(share: float, width: int) -> str:
    """``share`` (0 to 1) as a bar of ``width`` characters."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def forecast_lines(forecast: Forecast) -> list[str]:
    """What the model is, what the run needs against what there is, and where it goes."""
    count = forecast.parameters
    weights = f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
    size = human(forecast.bytes)
    lines = [f"{forecast.name}: {forecast.architecture}, {weights} weights, {size}"]
    if forecast.download:
        free = human(forecast.download_free)
        lines.append(f"Download {human(forecast.download)} first; its disk has {free} free")
    largest = max(forecast.memory, key=lambda name: forecast.memory[name], default="")
    if forecast.disk:
        needs = f"Needs {human(forecast.disk_needed)} of {human(forecast.disk_free)} free disk"
        if largest:
            memory = f"{human(forecast.memory_needed)} of {human(forecast.memory_free)} free memory"
            needs += f" and {memory} ({largest})"
        lines.append(needs)
    there = f"; there already: {', '.join(forecast.there)}" if forecast.there else ""
    lines.append(f"Into {forecast.out}{there}")
    return [*lines, *(f"✗ {problem}" for problem in forecast.problems)]


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return human(int(value))
    digits = 1 if value < 100 and value != int(value) else 0
    return f"{value:,.{digits}f} {unit}".rstrip()
