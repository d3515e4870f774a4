"""The form that all screens with fields share: what is wrong stands under its field."""

import asyncio
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.widgets import Footer

from app.tui import widgets
from app.tui.widgets.form import Check, Field, FieldHelp, Form, Group, path_field, text_field
from tests.support import wait_until


class Order(Form):
    looked = 0

    def compose(self) -> ComposeResult:
        yield Group(
            "Goods",
            path_field("what", "What", about="a file"),
            text_field("count", "Count", about="a whole number"),
            Field("", Check("Wrapped", value=False, id="wrapped")),
        )
        yield FieldHelp()

    async def look(self) -> None:
        self.looked += 1
        self.refuse_all({} if self.text_of("count").isdecimal() else {"count": "no number"})


class Orders(App[None]):
    CSS_PATH: ClassVar[list[Path]] = [Path(widgets.__file__).with_name("form.tcss")]  # type: ignore[assignment]

    def compose(self) -> ComposeResult:
        yield Order()
        yield Footer()


def shown(form: Form, name: str) -> str:
    field = next(f for f in form.query(Field) if f.entry.id == name)
    return "".join(str(error.render()) for error in field.query(".field-error") if error.display)


async def test_errors_and_help_are_those_of_the_fields() -> None:
    app = Orders()
    async with app.run_test(size=(60, 12)) as pilot:
        form = app.query_one(Order)
        assert not form.errors
        assert "alt+n" not in app.screen.active_bindings
        form.refuse_all({"count": "how many?", "wrapped": "not today"})
        await pilot.pause()
        assert shown(form, "count") == "✗ how many?"
        count, error = app.query_one("#count"), form.query(".field-error")[0]
        assert (error.region.y, error.region.x) == (count.region.y + 1, count.region.x)
        # The key goes from one to the next, and round.
        for name in ("count", "wrapped", "count"):
            await pilot.press("alt+n")
            assert app.focused is app.query_one(f"#{name}")
        await pilot.press("3")
        await pilot.pause()
        assert (shown(form, "count"), list(form.errors)) == ("", ["wrapped"])
        await pilot.click("#wrapped")
        await pilot.pause()
        assert not form.errors
        assert "alt+n" not in app.screen.active_bindings

        app.query_one("#what").focus()
        await pilot.pause()
        assert str(app.query_one(FieldHelp).content) == "a file"
        # A click on the label goes to its field.
        await pilot.click(form.query(Field)[1], offset=(11, 0))
        assert app.focused is app.query_one("#count")
        await pilot.pause()
        assert str(app.query_one(FieldHelp).content) == "a whole number"
        assert app.query_one("#what").region.x == app.query_one("#count").region.x
        assert app.query_one("#what").region.x == app.query_one("#wrapped").region.x


async def test_a_form_looks_once_the_user_pauses() -> None:
    app = Orders()
    async with app.run_test(size=(60, 12)) as pilot:
        form = app.query_one(Order)
        form.fill(count="many")
        form.look_later(0.01)
        form.look_later(0.01)
        while not form.looked:
            await pilot.pause(0.01)
        await app.workers.wait_for_complete()
        assert (form.looked, form.errors) == (1, {"count": "no number"})


async def test_a_form_may_go_while_it_looks() -> None:
    looks: list[str] = []

    class Slow(Order):
        async def look(self) -> None:
            looks.append("begun")
            while self.query("#count"):  # the fields go before the form does
                await asyncio.sleep(0)
            looks.append("gone")
            await super().look()

    class Leaving(Orders):
        def compose(self) -> ComposeResult:
            yield Slow()

    app = Leaving()
    async with app.run_test(size=(60, 12)):
        app.query_one(Slow).look_later(0)
        await wait_until(lambda: looks)
    assert looks == ["begun", "gone"]
