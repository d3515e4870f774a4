"""The table of records that all lists with columns share."""

from rich.text import Text
from textual.app import App, ComposeResult

from app.tui.widgets.table import Table, TableColumn

MANY = 1_000_000


class Tables(App[None]):
    def __init__(self) -> None:
        super().__init__()
        columns: list[TableColumn[int]] = [
            TableColumn("n", lambda n: f"{n:,}", 9, right=True),
            TableColumn("words", lambda n: Text(f"row {n} " * 20)),
        ]
        self.table = Table(columns, key=lambda n: n)
        self.selected: list[int | None] = []

    def compose(self) -> ComposeResult:
        yield self.table

    def on_table_selected(self) -> None:
        self.selected.append(self.table.record)


def drawn(table: Table[int]) -> list[str]:
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


async def test_a_million_records_are_drawn_as_far_as_they_are_in_sight() -> None:
    app = Tables()
    async with app.run_test(size=(40, 10)) as pilot:
        table = app.table
        table.show(range(MANY))
        await pilot.press("end", "up", "pageup", "down")
        await pilot.pause()
        assert table.record == MANY - 1 - 1 - 8 + 1
        assert drawn(table)[0] == "         n  words"
        assert f"{MANY - 1 - 1 - 8:,}" in drawn(table)[1]
        assert all(line.endswith("…") for line in drawn(table)[1:])
        await pilot.press("home", "enter")
        await pilot.pause()
        assert app.selected == [0]
        await pilot.press("pagedown")
        assert table.record == 8


async def test_the_cursor_stays_on_its_record() -> None:
    app = Tables()
    async with app.run_test(size=(40, 10)) as pilot:
        table = app.table
        table.show(range(5))
        assert table.go_to(3)
        assert not table.go_to(7)
        table.show([9, 3, 1])
        assert table.record == 3
        table.show([9, 1])
        assert table.record == 1, "it is gone: what stands in its place"
        table.show([])
        assert table.record is None
        table.show([4, 5], keep=False)
        await pilot.pause()
        assert table.record == 4


async def test_a_click_highlights_and_another_one_selects() -> None:
    app = Tables()
    async with app.run_test(size=(40, 10)) as pilot:
        app.table.show(range(100, 120))
        await pilot.click(Table, offset=(4, 3))
        assert (app.table.record, app.selected) == (102, [])
        await pilot.click(Table, offset=(4, 3))
        await pilot.click(Table, offset=(4, 0))  # the headings
        await pilot.pause()
        assert app.selected == [102]
