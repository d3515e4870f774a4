"""The compare mode: one prompt, several files, their answers side by side."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Digits, ProgressBar, Static

from app.compare.answers import GREEDY, CompareReport, Contender, Parting, Question, Side, SideState
from app.compare.report import agreement_line, as_json, as_markdown, figures_of, place_of
from app.compare.results import PromptResult, Results
from app.compare.run import Comparison, first_choice
from app.here import at_home
from app.models.catalog import ModelEntry, catalog, quality_text, size_of
from app.tui.app import app_of, services_of
from app.tui.keys import bind, told
from app.tui.screens.dialogs import AskScreen, bind_first
from app.tui.screens.models import ModelsScreen
from app.tui.textual_patches import Plain, background, latest
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.prompt import Prompt
from runtimes import own
from runtimes.chat import Message
from runtimes.errors import IngotError
from runtimes.output import json_text
from runtimes.request import SamplingParams

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
        self._shown: object = None

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
        shown = (side, parting, fastest, base)
        if shown == self._shown:
            return
        ends, self._shown = side.state.ended and str(side.state) != self.state, shown
        self.border_title = Content(f"{side.label} (base)" if first else side.label)
        at_work = side.state in (SideState.LOADING, SideState.ANSWERING)
        self.state = f"{side.state} ..." if at_work else str(side.state)
        self._colour = _STATES.get(side.state, "$text-warning")
        self.on_resize()
        self.set_class(side.state is SideState.FAILED, "-failed")
        self.query_one(Speed).show(side.decode_tps, fastest, base)
        self.query_one(".figures", Static).update(" · ".join(figures_of(side, speed=False)))
        self._draw(body(side, parting, first=first, hue=self.hue))
        if ends:
            place = parting.places[0 if first else 1] if parting is not None else 0
            self.call_after_refresh(self._go_to, place, len(side.written))

    def on_resize(self) -> None:
        """In the border stands the state, and before it what there is room for of the file."""
        state, about = Content.styled(self.state, self._colour), self._about
        room = self.outer_size.width - _CORNERS
        while about and len(about) + 3 + len(self.state) > room:
            _, _, about = about.partition(" · ")
        self.border_subtitle = Content(" · ").join(filter(None, (Content(about), state)))

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
        rest = text[at + len(piece or "") :]
        content = Content.assemble(text[:at], (_MARK + marked, f"{_STYLE} {hue}"), (rest, hue))
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


_LOOKS = 1 / 8  # seconds between two looks at a comparison
_HINT = (
    "[compare.files ctrl+t] chooses the files: [models.tick ctrl+x] ticks them,"
    " [models.choose enter] takes them."
)


class CompareScreen(ModeScreen):
    """The base screen of the compare mode."""

    MODE = "compare"
    HELP = """
    One prompt to several files, each in a process of its own, one after another. With temperature 0
    **▶** shows the first token that differs from the first file's answer.
    **[compare.files ctrl+t]** chooses the files, **[chat.send enter]** asks,
    **[compare.stop esc]** stops,
    **[compare.from_chat ctrl+o]** takes the question of the chat, **[compare.save F9]** saves;
    **[compare.length ctrl+s]** sets how long answers may be, **[compare.together alt+a]** asks all
    at once (done sooner, but each is slower), **[compare.new ctrl+n]** starts over.
    **[compare.prompts F8]** has all files answer a file of prompts, unattended.
    """
    CSS_PATH = [
        "compare.tcss",
        "../widgets/prompt.tcss",
    ]
    AUTO_FOCUS = "Prompt"
    BINDINGS = [
        bind("escape", "compare.stop", "Stop"),
        bind_first("ctrl+t", "compare.files", "Files"),
        bind_first("ctrl+r", "compare.again", "Again"),
        bind_first("alt+a", "compare.together", "At once"),
        bind_first("ctrl+s", "compare.length", "Length", show=False),
        bind_first("ctrl+n", "compare.new", "New", show=False),
        bind_first("ctrl+o", "compare.from_chat", "From chat"),
        bind_first("f8", "compare.prompts", "Prompts file"),
        bind_first("f9", "compare.save", "Save"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.prompt = Prompt()
        self.entries: tuple[ModelEntry, ...] = ()
        self.params: SamplingParams = GREEDY
        self.together = False
        self.comparison: Comparison | None = None
        self.report: CompareReport | None = None
        self._earlier: tuple[Message, ...] = ()
        self._question: Question | None = None

    def contents(self) -> ComposeResult:
        yield Plain(id="how")
        yield ComparePanes(id="panes")
        yield Vertical(id="agreement")
        yield self.prompt

    @background
    async def on_mount(self) -> None:
        """Two files of the loaded model, if there are two."""
        self.prompt.placeholder = "What all files are asked"
        self.tell_how()
        self.set_interval(_LOOKS, self._look)
        first: Sequence[ModelEntry] = ()
        if choice := services_of(self).host.choice:
            first = first_choice(await asyncio.to_thread(catalog), choice.file.path)
        if not self.entries:
            await self.choose(first)

    def on_unmount(self) -> None:
        """No process outlives the screen."""
        self.interrupt()

    # What is asked, and whom

    async def choose(self, entries: Sequence[ModelEntry]) -> None:
        self.entries = tuple(entries)
        self.report = None
        panes = self.query_one(ComparePanes)
        await panes.remove_children()
        if self.entries:
            known = await asyncio.to_thread(
                lambda: [(one.label, n, about(one)) for n, one in enumerate(self.entries)]
            )
            await panes.mount(*(ComparePane(*one) for one in known))
        else:
            await panes.mount(Static(told(self, _HINT), id="hint"))
        panes.lay_out()
        agreement = self.query_one("#agreement")
        agreement.display = False
        await agreement.remove_children()
        strips = (SameStrip(entry.label, n) for n, entry in enumerate(self.entries) if n)
        await agreement.mount(*strips)

    def take(self, messages: Sequence[Message]) -> None:
        """Ask what the last of ``messages`` asks, after those before it."""
        *earlier, last = messages
        self._earlier = tuple(earlier)
        self.prompt.fill(str(last["content"]))
        self.prompt.focus()
        self.tell_how()

    @on(Prompt.Sent)
    def _sent(self, event: Prompt.Sent) -> None:
        messages = (*self._earlier, {"role": "user", "content": event.text})
        self.prompt.earlier.add(event.text)
        self.prompt.give_back(event.text)  # it stays, as the panes do not show what was asked
        self.ask(Question(messages, self.params))

    def ask(self, question: Question) -> None:
        if self._refused(2):
            return
        stats = services_of(self).host.stats()
        if stats is not None and stats.running:
            self.notify("The chat is answering: all of this will be slower.", severity="warning")
        self._question = question
        contenders = [Contender(e.model, e.options, e.label) for e in self.entries]
        self.comparison = Comparison(contenders, question, together=self.together)
        self.comparison.start()
        self._began = time.monotonic()
        self._look()

    @property
    def running(self) -> bool:
        return self.comparison is not None

    def _refused(self, files: int = 0) -> bool:
        """Whether a comparison runs, or fewer ``files`` are chosen; says so then."""
        if self.running:
            why = "A comparison runs: [compare.stop esc] stops it."
        elif len(self.entries) < files:
            why = "Choose two files at least: [compare.files ctrl+t]."
        else:
            return False
        self.notify(why, severity="warning")
        return True

    def _look(self) -> None:
        if self.comparison is None:
            return
        report = self.comparison.poll()
        if report.ended:
            self.comparison = None
            app_of(self).ended("the comparison is over", time.monotonic() - self._began)
        if len(self.query(ComparePane)) == len(report.sides):
            self.show(report)

    def show(self, report: CompareReport) -> None:
        self.report = report
        first, *others = report.sides
        partings = [found.parting if found else None for found in report.agreements]
        self.query_one(ComparePanes).show(report.sides, partings)
        strips = self.query(SameStrip)
        for strip, side, found in zip(strips, others, report.agreements, strict=True):
            strip.display = found is not None and side.state.ended
            if found is not None and strip.display:
                line = agreement_line(found, side, first).removeprefix(f"{side.label}: ")
                strip.show(found.same_share, line)
        self.query_one("#agreement").display = any(strip.display for strip in strips)
        self.refresh_bindings()

    def tell_how(self) -> None:
        """Say how the next question is asked."""
        parts = [
            "all at once" if self.together else "one after another",
            f"temperature {self.params.temperature:g}",
            f"up to {self.params.max_tokens:,} tokens",
        ]
        if count := len(self._earlier):
            parts.append(f"after {count} message{'s' if count > 1 else ''} of the chat")
        self.query_one("#how", Static).update(" · ".join(parts))

    # Keys

    def can(self, action: str) -> bool:
        asked = self._question is not None or self.report is not None
        return {"stop": self.running, "again": asked, "save": asked}.get(action, True)

    def interrupt(self) -> bool:
        if self.comparison is not None:
            self.comparison.stop()
        return self.running

    action_stop = interrupt

    def leaving(self) -> str | None:
        return "A comparison is not finished." if self.running else None

    def action_again(self) -> None:
        """Ask the question once more, of the files that are chosen now."""
        if self._question is not None:
            self.ask(replace(self._question, params=self.params))

    def action_together(self) -> None:
        self.together = not self.together
        self.tell_how()

    def action_new(self) -> None:
        """An empty prompt, without the chat's messages."""
        self._earlier = ()
        self.prompt.fill("")
        self.prompt.focus()
        self.tell_how()

    @background
    async def action_files(self) -> None:
        if self._refused():
            return
        ticked = [entry.key for entry in self.entries]
        picker = ModelsScreen(app_of(self).named, several=True, ticked=ticked)
        if entries := await self.app.push_screen_wait(picker):
            await self.choose(entries)

    @latest
    async def action_prompts(self) -> None:
        """Have the chosen files answer a file of prompts."""
        if self._refused(2):
            return
        module = await asyncio.to_thread(import_module, own("app.tui.screens.compare_prompts"))
        self.app.push_screen(module.ComparePromptsScreen(self.entries))

    @background
    async def action_length(self) -> None:
        now = f"{self.params.max_tokens:,}"
        text = await self.app.push_screen_wait(
            AskScreen("Longest answer, tokens", now, wrong=self._wrong_length)
        )
        if text is not None:
            self.params = self._with_length(text)
            self.tell_how()

    def _with_length(self, text: str) -> SamplingParams:
        return replace(self.params, max_tokens=int(text.replace(",", "")))

    def _wrong_length(self, text: str) -> str:
        try:
            self._with_length(text)
        except (ValueError, IngotError):
            return f"{text!r} is no whole number above 0."
        return ""

    def action_from_chat(self) -> None:
        """Ask what was asked last in the chat, with the messages before it."""
        from app.chat.conversation import Conversation
        from app.chat.store.records import Role
        from app.tui.modes import CHAT
        from app.tui.screens.chat import ChatScreen

        chats = (one for one in self.app.get_screen_stack(CHAT.name) if isinstance(one, ChatScreen))
        asked = [one for chat in chats for one in chat.path if one.role is Role.USER]
        if not asked:
            self.notify("Nothing was asked in the chat yet.", severity="warning")
            return
        with self.errors_told():
            conversation = Conversation.open(services_of(self).store, asked[-1].chat)
            self.take(conversation.prompt(asked[-1].id))

    @background
    async def action_save(self) -> None:
        """Write the comparison to a file: Markdown, or JSON if its name ends so."""
        report = self.report
        if report is None:
            return

        def write(path: Path) -> None:
            as_data = path.suffix == ".json"
            with path.open("x", encoding="utf-8") as file:
                file.write(json_text(as_json(report), 1) if as_data else as_markdown(report))

        await save(self, write)


async def save(screen: ModeScreen, write: Callable[[Path], object]) -> None:
    """Ask for a path, have ``write`` make the file there, in a thread, and say how that went."""
    name = time.strftime("compare-%Y%m%d-%H%M%S.md")
    given = await screen.app.push_screen_wait(AskScreen("Save as (.md or .json)", name))
    if given is None:
        return
    path = at_home(given)
    try:
        await asyncio.to_thread(write, path)
        screen.notify(f"Saved: {path}")
    except (IngotError, OSError) as error:
        why = str(error).removeprefix("--output: ")
        if isinstance(error, FileExistsError):
            why = f"{path} exists already; take another name."
        screen.notify(why, title="Not saved", severity="error")


def about(entry: ModelEntry) -> str:
    """Facts about a file, for the border of its pane. Reads its header."""
    size = "" if entry.bytes is None else size_of(entry)
    return " · ".join(filter(None, (size, quality_text(entry))))


# All files' answers to one prompt of a comparison, beside each other.


class AnswersScreen(ModeScreen):
    """One of a report's rows, and from there the others."""

    MODE = "compare"
    HELP = """
    All answers to one prompt; **▶** shows where one parts from the first file's.
    **[answers.earlier ←]** and **[answers.later →]** show the prompts before and after it.
    """
    CSS_PATH = "compare.tcss"
    BINDINGS = [
        bind_first("left", "answers.earlier", "Earlier", action="turn(-1)"),
        bind_first("right", "answers.later", "Later", action="turn(1)"),
        bind("escape", "answers.back", "Back", action="dismiss"),
    ]

    def __init__(self, results: Results, at: int) -> None:
        super().__init__()
        self._results, self._at = results, at

    def contents(self) -> ComposeResult:
        with VerticalScroll(classes="asked pane", can_focus=False):
            yield Plain(id="asked-text")
        labels = enumerate(file.label for file in self._results.files)
        yield ComparePanes(*(ComparePane(label, number) for number, label in labels))

    def on_mount(self) -> None:
        self.query_one(ComparePanes).lay_out()
        self._show()

    def action_turn(self, step: int) -> None:
        """To another row."""
        self._at = (self._at + step) % len(self._results.rows)
        self._show()

    def _show(self) -> None:
        row, results = self._results.rows[self._at], self._results
        box = self.query_one(".asked")
        box.border_title = f"Prompt {self._at + 1:,} of {len(results.rows):,}"
        expected = f"\n\nExpected: {' or '.join(row.expected)}" if row.expected else ""
        self.query_one("#asked-text", Static).update(row.prompt + expected)
        sides = [side_of(row, number, file.label) for number, file in enumerate(results.files)]
        partings = [parting_of(row, number) for number in range(1, len(sides))]
        self.query_one(ComparePanes).show(sides, partings)


def side_of(row: PromptResult, number: int, label: str) -> Side:
    """A file's answer as panes show it."""
    told = row.answers[number]
    state = SideState.FAILED if told.error else SideState.DONE
    return Side(contender=Contender(label), label=label, state=state, **asdict(told))


def parting_of(row: PromptResult, number: int) -> Parting | None:
    """The place where a later file's answer parts from the first one's: a word of each stands
    there."""
    at = row.places[number - 1]
    if at is None:
        return None
    mine, theirs = (place_of(row.answers[n].text, at) for n in (0, number))
    return Parting(row.parts[number - 1] or 0, mine, theirs, (at, at))
