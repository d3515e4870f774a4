"""A job in a few lines: what it does, how far it is, what its slots do."""

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import ProgressBar, Static

from app.batch.watch.view import JobView, Phase

_CELLS = 48  # of the strip; more slots than that share cells
_BAD = frozenset({Phase.FAILED, Phase.DIED})
_WAIT = frozenset({Phase.PAUSED, Phase.PAUSING, Phase.STOPPED, Phase.STOPPING, Phase.ELSEWHERE})


class JobHeader(Vertical):
    """``show`` draws a job as it is now."""

    def __init__(self) -> None:
        super().__init__(classes="pane")

    def compose(self) -> ComposeResult:
        with Horizontal(id="job-progress"):
            yield ProgressBar(show_percentage=False, show_eta=False)
            yield Static(id="job-counts")
        yield Static(id="job-slots")
        yield Static(id="job-said", markup=False)

    def show(self, view: JobView, title: str) -> None:
        """``title`` is what it reads and writes."""
        self.border_title = Content(title)
        self.border_subtitle = Content(view.state)
        self.set_class(view.phase.active, "-running")
        self.set_class(view.phase in _BAD, "-failed")
        self.set_class(view.phase in _WAIT, "-waiting")
        self.set_class(view.phase is Phase.DONE, "-done")
        self.query_one(ProgressBar).update(total=view.rows or None, progress=view.done)
        self.query_one("#job-counts", Static).update(counts_of(view))
        self.query_one("#job-slots", Static).update(slots_of(view, self.size.width - 4))
        said = self.query_one("#job-said", Static)
        said.update("\n".join(view.lines or [" · ".join(view.notes)]))
        said.set_class(not (view.lines or view.notes), "-empty")


def counts_of(view: JobView) -> Content:
    """Rows, in as many columns whatever they are."""
    rows = f"{view.rows:,}"
    wide, share = len(rows), view.done / view.rows if view.rows else 0.0
    return Content.assemble(
        (f"{view.done:>{wide},}", "bold"),
        (f" of {rows}  ", "$text-muted"),
        (f"{view.failed:>{wide},} failed", "$text-error" if view.failed else "$text-muted"),
        (f"  {int(100 * share):>3}%", "bold"),
    )


def slots_of(view: JobView, room: int) -> Content:
    """A cell for each slot, then what they hold; the figures that there is room for."""
    parts: list[Content] = []
    if view.slots and view.phase.active:
        running = min(view.running or 0, view.slots)
        counts = (running - view.reading, view.reading, view.slots - running)
        wide = len(str(view.slots))
        parts.append(
            Content.assemble(
                ("Slots ", "$text-muted"),
                *strip_of(counts),
                (f" {view.slots}", ""),
                (f" · {counts[0]:>{wide}} decoding", "$text-muted"),
                (f" · {counts[1]:>{wide}} reading", "$text-muted"),
                (f" · {counts[2]:>{wide}} free", "$text-muted"),
            )
        )
    if view.kv_capacity and view.phase.active:
        parts.append(_figure("KV", f"{100 * (view.kv_tokens or 0) / view.kv_capacity:>3.0f}%"))
    if view.prompt_tokens:
        parts.append(
            _figure("prefix hits", f"{100 * view.cached_tokens / view.prompt_tokens:>3.0f}%")
        )
    if view.memory_bytes:
        parts.append(_figure("memory", f"{view.memory_bytes / 2**30:.2f} GiB"))
    elif view.prompt_tokens and not view.slots:
        parts.append(_figure("prompts", f"{view.prompt_tokens:,} tokens"))
        parts.append(_figure("answers", f"{view.output_tokens:,} tokens"))
    if view.cached:
        parts.append(_figure("from before", f"{view.cached:,}"))
    line = Content("")
    for part in parts:
        longer = line + Content("   ") + part if line else part
        if longer.cell_length > room:
            break
        line = longer
    return line


def strip_of(counts: tuple[int, int, int]) -> list[tuple[str, str]]:
    """Cells of the slots that decode, read a prompt, and are free."""
    total = sum(counts)
    cells = min(total, _CELLS)
    ends = [round(sum(counts[: i + 1]) * cells / total) for i in range(3)]
    marks = (("■", "$text-primary"), ("▪", "$text-warning"), ("□", "$text-muted"))
    begins = (0, *ends[:2])
    return [
        (mark * (end - begin), style)
        for (mark, style), begin, end in zip(marks, begins, ends, strict=True)
    ]


def _figure(name: str, value: str) -> Content:
    return Content.assemble((f"{name} ", "$text-muted"), value)
