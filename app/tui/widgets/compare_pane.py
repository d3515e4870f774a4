"""One file of a comparison: its answer as it comes, its figures, the place where it parts."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.compare.records import Parting, Side, SideState
from app.compare.text import figures_of

_MARK = "▶"
_STYLE = "bold reverse"
_WORDS = {
    SideState.WAITING: "waiting",
    SideState.LOADING: "loading ...",
    SideState.ANSWERING: "answering ...",
    SideState.DONE: "done",
    SideState.STOPPED: "stopped",
    SideState.FAILED: "failed",
}


class ComparePane(Vertical):
    """``show`` is cheap when nothing has changed."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.border_title = label
        self._shown: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """The answer above, the figures below."""
        with VerticalScroll():
            yield Static(classes="answer", markup=False)
        yield Static(classes="figures", markup=False)

    def show(self, side: Side, parting: Parting | None, *, first: bool) -> None:
        """Show ``side``; ``first`` is the one that the others are compared with."""
        index = None if parting is None else parting.index
        key = (side.state, side.error, len(side.text), len(side.token_ids), index, side.figures)
        if key == self._shown:
            return
        before, self._shown = self._shown, key
        self.border_title = f"{side.label} (base)" if first else side.label
        self.border_subtitle = _WORDS[side.state]
        self.set_class(side.state is SideState.FAILED, "failed")
        self.query_one(".figures", Static).update(" · ".join(figures_of(side)))
        if before[:5] != key[:5]:
            self._draw(body(side, parting))
        if side.state.ended and (not before or before[0] is not side.state):
            self.call_after_refresh(self._go_to, side, parting)

    def _draw(self, answer: Content) -> None:
        """Replace the answer; who reads its end stays there."""
        scroll = self.query_one(VerticalScroll)
        at_end = scroll.scroll_y >= scroll.max_scroll_y - 1
        self.query_one(".answer", Static).update(answer)
        if at_end:
            self.call_after_refresh(scroll.scroll_end, animate=False)

    def _go_to(self, side: Side, parting: Parting | None) -> None:
        """At the end show the place of the difference, or the beginning."""
        answer, scroll = self.query_one(".answer", Static), self.query_one(VerticalScroll)
        share = 0.0
        if parting is not None and side.text:
            share = place(side, parting.index) / len(side.text)
        line = int(share * answer.size.height)
        scroll.scroll_to(y=max(line - scroll.size.height // 2, 0), animate=False)


def body(side: Side, parting: Parting | None) -> Content:
    """The answer, with a sign before the place where it parts; what differs is in reverse."""
    if side.error is not None and not side.text:
        return Content(f"No answer: {side.error}")
    text = side.text
    if parting is None:
        content = Content(text)
    else:
        at = place(side, parting.index)
        end = at + max(len(side.piece(parting.index)), 1) if side.starts else at + 1
        if at >= len(text):
            what = "the end" if side.ends_at(parting.index) else "a token without text"
            content = Content(text) + Content(f"{_MARK}{what}").stylize(_STYLE)
        else:
            marked = text[at:end].replace("\n", "⏎\n")
            content = Content(text[:at]) + Content(_MARK + marked).stylize(_STYLE)
            content += Content(text[end:])
    if side.error is not None:
        content += Content(f"\n\nEnded by an error: {side.error}")
    return content


def place(side: Side, index: int) -> int:
    """Where the token ``index`` begins in the text."""
    return side.starts[index] if index < len(side.starts) else len(side.text)
