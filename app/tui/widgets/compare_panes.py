"""The files of a comparison: each answer as it comes, its figures, the place where it parts."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Digits, ProgressBar, Static

from app.compare.answers import Parting, Side, SideState
from app.compare.report import figures_of
from app.tui.textual_patches import Plain

HUES = 4  # of files; then they begin again
_MARK = "▶"
_STYLE = "bold reverse"
_LEAST_WIDTH = 38  # of a pane beside others
_LEAST_HEIGHT = 9  # below that the panes scroll
_CORNERS = 8  # columns of a border that its words leave free
_TALL = 30  # lines of a terminal, from which on the speed is large
_STATES = {SideState.DONE: "$text-success", SideState.FAILED: "$text-error"}


class Speed(Horizontal):
    """Tokens a second, large where there is room, and how that is beside the fastest file."""

    def compose(self) -> ComposeResult:
        yield Digits("", classes="large")
        yield Plain("", classes="small")
        with Vertical():
            yield Plain("", classes="unit")
            yield ProgressBar(100, show_percentage=False, show_eta=False)

    def show(self, speed: float | None, fastest: float | None, base: float | None) -> None:
        """Show a speed, or nothing where it is not known; ``base`` is the first file's."""
        text = "" if speed is None else f"{speed:,.1f}" if speed < 1000 else f"{speed:,.0f}"
        self.query_one(Digits).update(text)
        self.query_one(".small", Static).update(text)
        ratio = f" · {speed / base:.2f}x" if speed and base and speed is not base else ""
        self.query_one(".unit", Static).update(f"tok/s{ratio}" if text else "")
        share = 100 * speed / fastest if speed and fastest else 0
        self.query_one(ProgressBar).update(progress=share)


class ComparePane(Vertical):
    """``show`` is cheap when nothing has changed. ``number`` is the file's, from 0: it has the hue;
    ``about`` is what is known of the file: size, bits, KL."""

    def __init__(self, label: str, number: int, about: str = "") -> None:
        super().__init__(classes=f"pane -hue-{number % HUES + 1}")
        self.border_title, self._about = Content(label), about
        self.hue = f"$hue-{number % HUES + 1}"
        self.state, self._colour = "", ""
        self._shown: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield Speed()
        with VerticalScroll():
            yield Plain(classes="answer")
        yield Plain(classes="figures")

    def on_mount(self) -> None:
        scroll = self.query_one(VerticalScroll)
        self.watch(scroll, "scroll_y", self._scrolled, init=False)

    def _scrolled(self, at: float) -> None:
        """The others go with it."""
        if isinstance(self.parent, ComparePanes):
            self.parent.in_step(self, at)

    def show(
        self,
        side: Side,
        parting: Parting | None,
        *,
        first: bool,
        fastest: float | None,
        base: float | None,
    ) -> None:
        """Show ``side``; ``first`` is the one that the others are compared with."""
        lengths, figures = (len(side.written), len(side.token_ids)), tuple(figures_of(side))
        key = (side.state, side.error, lengths, parting, figures, fastest, base)
        if key == self._shown:
            return
        before, self._shown = self._shown, key
        self.border_title = Content(f"{side.label} (base)" if first else side.label)
        at_work = side.state in (SideState.LOADING, SideState.ANSWERING)
        self.state = f"{side.state} ..." if at_work else str(side.state)
        self._colour = _STATES.get(side.state, "$text-warning")
        self.on_resize()
        self.set_class(side.state is SideState.FAILED, "-failed")
        self.query_one(Speed).show(side.decode_tps, fastest, base)
        self.query_one(".figures", Static).update(" · ".join(figures_of(side, speed=False)))
        if before[:4] != key[:4]:
            self._draw(body(side, parting, first=first, hue=self.hue))
        if side.state.ended and (not before or before[0] is not side.state):
            place = parting.places[0 if first else 1] if parting is not None else 0
            self.call_after_refresh(self._go_to, place, len(side.written))

    def on_resize(self) -> None:
        """In the border stands the state, and before it what there is room for of the file."""
        known = self._about.split(" · ") if self._about else []
        while len(" · ".join([*known, self.state])) > self.outer_size.width - _CORNERS and known:
            del known[0]
        about = " · ".join([*known, ""] if self.state else known)
        self.border_subtitle = Content.assemble(about, (self.state, self._colour))

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


def body(side: Side, parting: Parting | None, *, first: bool, hue: str) -> Content:
    """The answer below its thought, which is dim, with a sign before the place where it parts; what
    differs is in reverse, and all that follows in the file's hue."""
    text, thought = side.written, len(side.thought)
    if side.error is not None and not text:
        return Content(f"No answer: {side.error}")
    if parting is None:
        content = Content(text)
    else:
        at = parting.places[0 if first else 1]
        piece = parting.mine if first else parting.theirs
        marked = "the end" if piece is None else piece or "a token without text"
        marked = marked.replace("\n", "⏎\n")
        content = Content(text[:at]) + Content(_MARK + marked).stylize(f"{_STYLE} {hue}")
        content += Content(text[at + len(piece or "") :]).stylize(hue)
        thought = min(thought, at)
    if thought:
        content = content.stylize("$text-muted", 0, thought)
    if side.error is not None:
        content += Content(f"\n\nEnded by an error: {side.error}")
    return content


class SameStrip(Horizontal):
    """How much of the beginning of a later file's answer is the first file's."""

    def __init__(self, label: str, number: int) -> None:
        super().__init__(classes=f"-hue-{number % HUES + 1}")
        self._label = label

    def compose(self) -> ComposeResult:
        yield Plain(self._label, classes="name")
        yield ProgressBar(100, show_percentage=False, show_eta=False)
        yield Plain(classes="said")

    def show(self, share: float, said: str) -> None:
        """``share`` from 0 to 1."""
        self.query_one(ProgressBar).update(progress=100 * share)
        self.query_one(".said", Static).update(said)


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
        for speed in self.query(Speed):
            speed.set_class(self.app.size.height >= _TALL and height >= 12, "-tall")

    def on_resize(self) -> None:
        self.lay_out()

    def show(self, sides: Sequence[Side], partings: Sequence[Parting | None]) -> None:
        """Show a side in each pane; each one after the first parts from it at one of ``partings``,
        and the first one where the earliest does."""
        earliest = min(filter(None, partings), key=lambda p: p.places[0], default=None)
        speeds = [side.decode_tps for side in sides]
        fastest = max(filter(None, speeds), default=None)
        shown = zip(self.query(ComparePane), sides, (earliest, *partings), strict=True)
        for pane, side, parting in shown:
            first = side is sides[0]
            pane.show(side, parting, first=first, fastest=fastest, base=speeds[0])

    def in_step(self, moved: ComparePane, at: float) -> None:
        """Bring all panes to the line that one was moved to."""
        for pane in self.query(ComparePane):
            if pane is not moved:
                scroll = pane.query_one(VerticalScroll)
                if scroll.scroll_y != min(at, scroll.max_scroll_y):
                    scroll.scroll_to(y=at, animate=False, immediate=True)


def columns(count: int, width: int) -> int:
    """How many of ``count`` panes stand side by side in ``width`` cells. Rows are as full as they
    can be: four panes are two and two, not three and one."""
    across = max(1, min(count, width // _LEAST_WIDTH))
    rows = -(-count // across)
    return -(-count // rows)
