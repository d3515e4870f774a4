"""The panel of the last sweep: speed by the number of rows, for each file."""

from datetime import datetime

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll

from app.sweeps import OURS, Sweep, about, by_side, groups, named, verdicts
from app.tui.screens.dialogs import Panel
from app.tui.textual_patches import Plain
from app.tui.widgets.chart import Axis, Chart, Series

# Of files, in their order; further ones begin again.
_LOOKS = tuple(
    zip(
        ("$primary", "$secondary", "$success", "$warning", "$accent", "$error"),
        "●■▲◆▼★",
        strict=True,
    )
)
_SIDE_BY_SIDE = 3  # charts; more would be too narrow
NONE = "Nothing has been measured yet: `ingot bench MODEL --sweep` does it, in a shell."


class SweepScreen(Panel[None]):
    """A chart for each length of prompt and answer."""

    HEADING = "Many rows at once"

    def __init__(self, found: tuple[Sweep, float] | None) -> None:
        """``found`` is None without a sweep; else it and when it was finished, in seconds."""
        super().__init__()
        self._found = found

    def contents(self) -> ComposeResult:
        if self._found is None:
            yield Plain(NONE)
            return
        sweep, finished = self._found
        with Horizontal(id="sweep-charts"):
            for prompt, answer in list(groups(sweep))[:_SIDE_BY_SIDE]:
                chart = Chart(x=Axis("rows", log=True), y=Axis("tok/s", low=0.0))
                chart.border_title = f"{prompt:,} + {answer:,} tokens"
                yield chart
        said = verdicts(sweep)
        if (more := len(groups(sweep)) - _SIDE_BY_SIDE) > 0:
            said.append(f"charts of {more} more lengths are on the page that --output writes")
        with VerticalScroll(id="sweep-verdicts"):
            yield Plain("\n".join(said))
        when = datetime.fromtimestamp(finished).strftime("%d %B %Y, %H:%M")
        yield Plain(f"{about(sweep)} Measured on {when}.", id="sweep-about")

    def on_mount(self) -> None:
        if self._found is not None:
            for chart, files in zip(
                self.query(Chart), groups(self._found[0]).values(), strict=False
            ):
                series: list[Series] = []
                for key, measured in files.items():
                    rows = sorted(by_side(measured)[OURS].items())
                    points = [(float(count), one.tps) for count, one in rows]
                    color, marker = _LOOKS[len(series) % len(_LOOKS)]
                    series.append(Series(named(*key), points, "marked", color, marker))
                chart.show(series)
