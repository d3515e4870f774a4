"""The files of a comparison: each answer as it comes, its figures, the place where it parts."""

from textual.app import ComposeResult
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.compare.records import Parting, Side, SideState
from app.compare.text import figures_of

_MARK = "▶"
_STYLE = "bold reverse"
_WIDE = 100  # columns from which two panes stand side by side
_LEAST_WIDTH = 38  # of a pane beside others
_LEAST_HEIGHT = 7  # below that the panes scroll


class ComparePane(Vertical):
    """``show`` is cheap when nothing has changed."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.border_title = label
        self._shown: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(classes="answer", markup=False)
        yield Static(classes="figures", markup=False)

    def show(self, side: Side, parting: Parting | None, *, first: bool) -> None:
        """Show ``side``; ``first`` is the one that the others are compared with."""
        key = (side.state, side.error, len(side.text), len(side.token_ids), parting, side.figures)
        if key == self._shown:
            return
        before, self._shown = self._shown, key
        self.border_title = f"{side.label} (base)" if first else side.label
        at_work = side.state in (SideState.LOADING, SideState.ANSWERING)
        self.border_subtitle = f"{side.state} ..." if at_work else str(side.state)
        self.set_class(side.state is SideState.FAILED, "failed")
        self.query_one(".figures", Static).update(" · ".join(figures_of(side)))
        if before[:5] != key[:5]:
            self._draw(body(side, parting, first=first))
        if side.state.ended and (not before or before[0] is not side.state):
            place = parting.places[0 if first else 1] if parting is not None else 0
            self.call_after_refresh(self._go_to, place, len(side.text))

    def _draw(self, answer: Content) -> None:
        """Replace the answer; who reads its end stays there."""
        scroll = self.query_one(VerticalScroll)
        at_end = scroll.scroll_y >= scroll.max_scroll_y - 1
        self.query_one(".answer", Static).update(answer)
        if at_end:
            self.call_after_refresh(scroll.scroll_end, animate=False)

    def _go_to(self, place: int, length: int) -> None:
        """At the end show the place of the difference, or the beginning."""
        answer, scroll = self.query_one(".answer", Static), self.query_one(VerticalScroll)
        line = answer.size.height * place // max(length, 1)
        scroll.scroll_to(y=max(line - scroll.size.height // 2, 0), animate=False)


def body(side: Side, parting: Parting | None, *, first: bool) -> Content:
    """The answer, with a sign before the place where it parts; what differs is in reverse."""
    if side.error is not None and not side.text:
        return Content(f"No answer: {side.error}")
    text = side.text
    if parting is None:
        content = Content(text)
    else:
        at = parting.places[0 if first else 1]
        piece = parting.mine if first else parting.theirs
        marked = "the end" if piece is None else piece or "a token without text"
        marked = marked.replace("\n", "⏎\n")
        content = Content(text[:at]) + Content(_MARK + marked).stylize(_STYLE)
        content += Content(text[at + len(piece or "") :])
    if side.error is not None:
        content += Content(f"\n\nEnded by an error: {side.error}")
    return content


class ComparePanes(Container):
    """A grid; ``lay_out`` again when there are other panes."""

    DEFAULT_CSS = """
    ComparePanes { layout: grid; grid-size: 1; height: 1fr; overflow: hidden auto; }
    """

    def lay_out(self) -> None:
        """As many columns as the width has room for, and rows of equal height."""
        count = max(1, len(self.children))
        across = columns(count, self.size.width)
        height = self.size.height // -(-count // across)
        self.styles.grid_size_columns = across
        self.styles.grid_rows = "1fr" if height >= _LEAST_HEIGHT else f"{_LEAST_HEIGHT}"

    def on_resize(self) -> None:
        self.lay_out()


def columns(count: int, width: int) -> int:
    """How many of ``count`` panes stand side by side in ``width`` cells. Rows are as full as they
    can be: four panes are two and two, not three and one."""
    if count <= 2:
        return count if width >= _WIDE else 1
    across = max(1, min(count, width // _LEAST_WIDTH))
    rows = -(-count // across)
    return -(-count // rows)
