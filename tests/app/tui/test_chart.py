"""The chart: what stands where, in which colours, and that it is drawn within its place."""

import math
from collections.abc import Sequence

import pytest
from textual.app import App, ComposeResult
from textual.color import Color
from textual.filter import LineFilter

from app.tui import theme
from app.tui.widgets.chart import Axis, Chart, Mark, Series, numbers, scale, times
from tests.support import wait_until

RAMP = [(float(x), x / 2) for x in range(101)]


class ChartApp(App[None]):
    def __init__(self, chart: Chart) -> None:
        super().__init__()
        self.chart = chart
        self.no_color = theme.no_color()

    def on_mount(self) -> None:
        for own in theme.OWN:
            self.register_theme(own)
        self.theme = theme.INGOT.name

    def get_css_variables(self) -> dict[str, str]:
        self.theme_variables = theme.legible(super().get_css_variables())
        return self.theme_variables

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [theme.Restyled(theme.colourless)] if self.no_color else []

    def compose(self) -> ComposeResult:
        yield self.chart


def rows(chart: Chart) -> list[str]:
    return [chart.render_line(y).text for y in range(chart.size.height)]


def colour(chart: Chart, x: int, y: int) -> str:
    return chart.get_pixel(x, y)[1].split()[-1]


def variable(chart: Chart, name: str) -> str:
    return str(Color.parse(chart.app.theme_variables[name]).hex).lower()


# Axes


@pytest.mark.parametrize(
    ("values", "ticks", "labels"),
    [
        ([0, 87], 4, "0 50 100"),
        ([0.02, 0.04], 4, "0.00 0.01 0.02 0.03 0.04"),
        ([0, 23_000], 3, "0 10k 20k 30k"),
        ([], 2, "0.0 0.5 1.0"),
        ([0, 0], 1, "0 1"),
    ],
)
def test_values_are_marked_in_steps_of_1_2_and_5(
    values: Sequence[float], ticks: int, labels: str
) -> None:
    assert " ".join(scale(Axis(low=0), values, ticks, whole=True).labels) == labels


@pytest.mark.parametrize(
    ("low", "high", "ticks", "labels"),
    [
        (-300, 0, 5, "5 min|4 min|3 min|2 min|1 min|now"),
        (-60, 0, 2, "1:00|0:30|now"),
        (0, 95, 4, "0|0:30|1:00|1:30"),
        (0, 4000, 4, "0|30 min|60 min"),
        (0, 0.4, 2, "0|0.2 s|0.4 s"),
        (0, 900_000, 3, "0|5 d|10 d"),
    ],
)
def test_times_are_marked_as_people_count_them(
    low: float, high: float, ticks: int, labels: str
) -> None:
    found = scale(Axis(time=True, low=low, high=high), [], ticks, whole=False)
    assert "|".join(found.labels) == labels


def test_orders_of_magnitude_are_equally_far_apart() -> None:
    found = scale(Axis(log=True), [0.004, 0.2], 5, whole=True)
    assert found.labels == ("0.005", "0.01", "0.02", "0.05", "0.1", "0.2")
    assert found.share(0.02) - found.share(0.005) == pytest.approx(
        found.share(0.2) - found.share(0.05)
    )
    assert found.share(0) == 0
    wide = scale(Axis(log=True), [1e-9, 1e9], 4, whole=True)
    assert 2 <= len(wide.ticks) <= 6
    assert wide.low < 1e-9 < 1e9 < wide.high
    assert scale(Axis(log=True), [], 4, whole=True).ticks


def test_figures_are_at_most_five_characters() -> None:
    for power in range(-3, 9):
        steps = [step * 10.0**power for step in range(5)]
        assert all(len(text) <= 5 for text in numbers(steps)), numbers(steps)
    assert times([]) == []


# Drawing


LINES = """
tok/s                  ━━ decode  ● best
   50 ┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈★┈q4_k_m┈┈⣀⡠⠔⠒⠉⠁┈
                            ⣀⡠⠔⠒⠉
                       ⣀⡠⠔⠒⠉
                  ⣀⠤⠔⠊⠉
             ⣀⠤⠔⠊⠉
    0 ┈⢀⣀⠤⠔⠊⠉┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈●┈
       0                               s"""
AREAS = """
    %          ██ all  ██ ours
  100 ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅
      ▄▄▄▄▄▄▄▄▄▄▄▄████████████
      ████████████████████████
    0 ████████████████████████
      0           5         10"""
SHADED = """
    %          ░░ all  ██ ours
  100 ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅
      ▄▄▄▄▄▄▄▄▄▄▄▄░░░░░░░░░░░░
      ████████████░░░░░░░░░░░░
    0 ████████████░░░░░░░░░░░░
      0           5         10"""


def drawn(chart: Chart) -> str:
    return "".join(f"\n{line.rstrip()}" for line in rows(chart))


async def test_lines_points_and_a_mark_stand_where_the_axes_say() -> None:
    chart = Chart(x=Axis("s"), y=Axis("tok/s", low=0))
    async with ChartApp(chart).run_test(size=(40, 8)) as pilot:
        best = Series("best", [(100.0, 0.0)], "points", "$text-success")
        chart.show([Series("decode", RAMP), best], [Mark(50.0, 50.0, "q4_k_m")])
        await pilot.pause()
        assert drawn(chart) == LINES
        assert colour(chart, 38, 6) == variable(chart, "text-success")
        assert colour(chart, 19, 4) == variable(chart, "text-primary")

        edges = set()
        for factor in (1, 10, 1_000, 100_000):  # nothing moves when a number grows
            chart.show([Series("a", [(x, y * factor) for x, y in RAMP])])
            await pilot.pause()
            edges.add(rows(chart)[1].index("┈"))
        assert edges == {6}
        chart.show([Series("a", [])])
        assert drawn(chart).split() == ["nothing", "yet"]
        chart.show([Series("a", RAMP)])
        await pilot.resize_terminal(80, 15)
        await wait_until(lambda: {len(line) for line in rows(chart)} == {80})
        assert "nothing yet" not in drawn(chart)
        assert not chart.focusable


@pytest.mark.parametrize("plain", [False, True])
async def test_areas_are_filled_in_eighths_in_the_colours_of_the_theme(
    monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", "1" * plain)
    chart = Chart(x=Axis(low=0, high=10), y=Axis("%", low=0, high=100))
    async with ChartApp(chart).run_test(size=(30, 6)) as pilot:
        ours = Series("ours", [(0.0, 62.5), (4.9, 62.5)], "area")
        chart.show([Series("all", [(0.0, 90.0), (9.9, 90.0)], "area", "$text-secondary"), ours])
        await pilot.pause()
        assert drawn(chart) == (SHADED if plain else AREAS)
        if not plain:
            primary, secondary = variable(chart, "text-primary"), variable(chart, "text-secondary")
            assert chart.get_pixel(8, 2)[1] == f"{primary} on {secondary}"
            assert colour(chart, 20, 2) == secondary
            pilot.app.theme = theme.INGOT_LIGHT.name
            await pilot.pause()
            assert colour(chart, 20, 2) == variable(chart, "text-secondary") != secondary
            pilot.app.theme = "ansi-dark"
            await pilot.pause()
            assert not colour(chart, 20, 2).startswith("#")  # the terminal's own


@pytest.mark.parametrize("log", [False, True])
async def test_every_size_and_odd_data_are_drawn(log: bool) -> None:
    odd: list[list[tuple[float, float]]] = [
        [(5.0, 3.0)],
        [(1.0, 0.0), (1.0, 0.0)],
        [(0.0, math.nan), (1.0, math.nan)],
        [(0.0, 1e12), (1e-9, -1e12)],
        [(float(x), math.sin(x)) for x in range(600)],
    ]
    chart = Chart(x=Axis("s"), y=Axis("tok/s", log=log))
    async with ChartApp(chart).run_test(size=(40, 9)) as pilot:
        for size in ((190, 20), (8, 2)):
            await pilot.resize_terminal(*size)
            await wait_until(lambda size=size: chart.size == size)
            for points in odd:
                for kind in ("line", "area", "points"):
                    chart.show([Series("a", points, kind)], [Mark(1.0, 2.0, "a word")])  # type: ignore[arg-type]
                    assert all(len(line) == size[0] for line in rows(chart))
        await pilot.resize_terminal(1, 1)
        await wait_until(lambda: chart.size == (1, 1))
        chart.show([Series("a", odd[-1])])  # for which there is no room
