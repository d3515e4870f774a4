"""What a job would be, beside its form: what a dry run counts, and the first rows of the input."""

from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from app.batch.watch.follow import TimeLike
from app.batch.watch.preview import Preview
from app.figures import duration

_PROBLEMS = 2
_GIB = 2**30


class Counts(VerticalScroll, can_focus=False):
    """Rows, tokens, memory and time of the job that the form asks for."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"counts--muted", "counts--bad", "counts--good"}

    def __init__(self, id: str) -> None:
        super().__init__(id=id, classes="pane")
        self.border_title = "This job"

    def compose(self) -> ComposeResult:
        yield Static(id="counts")

    def say(self, text: str) -> None:
        self.query_one(Static).update(Text(text, style=self._style("muted")))

    def show(self, found: dict[str, Any], like: TimeLike | None = None) -> None:
        """``found`` is what the dry run tells, ``like`` how long it takes by an earlier job."""
        lines = Table.grid(padding=(0, 1), expand=True)
        lines.add_column(justify="right", style=self._style("muted"), no_wrap=True)
        lines.add_column(ratio=1)
        for name, value, component in figures_of(found, like):
            lines.add_row(name, Text(value, style=self._style(component) if component else ""))
        self.query_one(Static).update(lines)

    def _style(self, name: str) -> Any:
        return self.get_component_rich_style(f"counts--{name}", partial=True)


def figures_of(found: dict[str, Any], like: TimeLike | None) -> list[tuple[str, str, str]]:
    """A name, a value and how it is to look for each line."""
    memory, seconds = found["memory"]["total"], found["most_seconds"]
    longest = found["longest_prompt"]
    lines = [("rows", f"{found['valid']:,}", "good")]
    if found["invalid"]:
        lines.append(("not valid", f"{found['invalid']:,}", "bad"))
    lines += [
        ("prompts", f"{found['prompt_tokens']:,} tokens", ""),
        ("answers", f"at most {found['most_answer_tokens']:,} tokens", ""),
        ("longest", f"{longest['tokens']:,} of {found['context']:,} tokens", ""),
        ("memory", f"{memory / _GIB:.2f} of {found['free_memory'] / _GIB:.1f} GiB free", ""),
        ("slots", f"{found['slots']:,}", ""),
    ]  # fmt: skip
    if seconds is not None:
        lines.append(("time", f"at most {duration(seconds)}", ""))
    elif like is not None:
        lines.append(("time", f"at most {duration(like.seconds)}", ""))
        lines.append(("", f"as fast as {like.output.name} was", "muted"))
    else:
        lines.append(("time", "not known before ingot plan", "muted"))
    for problem in found["problems"][:_PROBLEMS]:
        lines.append(("", f"{problem['where']}: {problem['message']}", "bad"))
    return lines


class FirstRows(VerticalScroll):
    """The first rows, as the job would read them."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--number", "rows--bad"}

    def __init__(self, id: str) -> None:
        super().__init__(id=id, classes="pane")
        self.border_title = "First rows"

    def compose(self) -> ComposeResult:
        yield Static(id="preview")

    def say(self, text: str) -> None:
        if not self.query(Static):  # a look may end while the app does
            return
        self.border_title = "First rows"
        style = self.get_component_rich_style("rows--number", partial=True)
        self.query_one(Static).update(Text(text, style=style))

    def show(self, found: Preview) -> None:
        if not self.query(Static):
            return
        more = "" if found.more else f" · {len(found.rows)} rows"
        self.border_title = f"First rows · {found.format}{more}"
        number, bad = (
            self.get_component_rich_style(f"rows--{name}", partial=True)
            for name in ("number", "bad")
        )
        lines = Table.grid(padding=(0, 1), expand=True)
        lines.add_column(justify="right", style=number, no_wrap=True)
        lines.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for row in found.rows:
            prompt = " ".join(row.prompt.split())
            lines.add_row(
                f"{row.index:,}", Text(f"✗ {row.error}", bad) if row.error else Text(prompt)
            )
        self.query_one(Static).update(lines)
