"""A run in lines for people; colour alone says nothing."""

from app.builds.progress import QuantizeRun, Stage, StageState, State
from app.figures import duration
from quantize.disk import human
from quantize.progress.pace import amount, clock

_BAR = 12  # characters
_SIGNS = {StageState.RUNNING: "▶", StageState.DONE: "✓", StageState.FAILED: "✗"}
_ENDS = {
    State.DONE: "done",
    State.PARTLY: "done, but not every file could be made or is good enough",
    State.STOPPED: "stopped; starting it again resumes from what is finished",
    State.FAILED: "failed; starting it again resumes from what is finished",
}


def headline(run: QuantizeRun, now: float) -> str:
    """The run in one line. ``now`` is in seconds since 1970."""
    files = f"{run.finished} of {len(run.recipes)} file{'s' * (len(run.recipes) > 1)} ready"
    if run.state is State.RUNNING:
        since = f"running {clock(now - run.begin)}" if run.begin else "starting"
        return f"{since}, {files}"
    return f"{_ENDS[run.state]} ({duration(run.seconds)}, {files})"


def recipe_lines(run: QuantizeRun) -> list[str]:
    """Each recipe with its state, and what is known of its file."""
    width = max(map(len, run.recipes), default=0)
    lines = []
    for recipe in run.recipes:
        state = run.state_of(recipe)
        more = ""
        if state is State.RUNNING:
            more = next(s.text for s in reversed(run.running()) if s.recipe == recipe)
        elif state is State.KEPT_BACK:
            more = run.kept_back[recipe]
        elif state is State.DONE and recipe in run.sizes:
            more = human(run.sizes[recipe])
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
        parts.append(amount(stage.done, stage.unit))
    elif stage.step:
        parts.append(stage.step)
    if stage.rate is not None:
        parts.append(f"{amount(stage.rate, stage.unit)}/s")
    if stage.seconds_left is not None:
        parts.append(f"{clock(stage.seconds_left)} left")
    else:
        parts.append(clock(now - stage.begin))
    return f"{text} · {', '.join(parts)}"


def bar(share: float, width: int) -> str:
    """``share`` (0 to 1) as a bar of ``width`` characters."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)
