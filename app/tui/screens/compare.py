"""The compare mode: one prompt, several files, their answers side by side."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from app.compare.answers import GREEDY, CompareReport, Contender, Parting, Question, Side, SideState
from app.compare.report import agreement_line, as_json, as_markdown, place_of
from app.compare.results import PromptResult, Results
from app.compare.run import Comparison, first_choice
from app.here import at_home
from app.models.catalog import ModelEntry, catalog, quality_text, size_of
from app.tui.app import app_of, services_of
from app.tui.keys import bind, told
from app.tui.screens.dialogs import AskScreen, bind_first
from app.tui.screens.models import ModelsScreen
from app.tui.textual_patches import Plain, background, latest
from app.tui.widgets.compare_panes import ComparePane, ComparePanes, SameStrip
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.prompt import Prompt
from runtimes import own
from runtimes.chat import Message
from runtimes.errors import IngotError, RequestError
from runtimes.output import json_text
from runtimes.request import SamplingParams

_LOOKS = 1 / 8  # seconds between two looks at a comparison


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
        choice = services_of(self).host.choice
        listed = await asyncio.to_thread(catalog) if choice else []
        if not self.entries:
            await self.choose(first_choice(listed, choice.file.path) if choice else [])

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
            hint = told(
                self,
                "[compare.files ctrl+t] chooses the files: [models.tick ctrl+x] ticks them,"
                " [models.choose enter] takes them.",
            )
            await panes.mount(Static(hint, id="hint"))
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
        why = ""
        if self.running:
            why = "A comparison runs: [compare.stop esc] stops it."
        elif len(self.entries) < files:
            why = "Choose two files at least: [compare.files ctrl+t]."
        if why:
            self.notify(why, severity="warning")
        return bool(why)

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
        parts = ["all at once" if self.together else "one after another"]
        parts.append(f"temperature {self.params.temperature:g}")
        parts.append(f"up to {self.params.max_tokens:,} tokens")
        if self._earlier:
            count = len(self._earlier)
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

    def action_stop(self) -> None:
        self.interrupt()

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
            as_text = (
                json_text(as_json(report), 1) if path.suffix == ".json" else as_markdown(report)
            )
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(as_text)
            except FileExistsError:
                raise RequestError(f"{path} exists already; take another name.") from None
            except OSError as error:
                raise RequestError(f"{path}: {error.strerror or error}") from None

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
    except (IngotError, OSError) as error:
        why = str(error).removeprefix("--output: ")
        screen.notify(why, title="Not saved", severity="error")
    else:
        screen.notify(f"Saved: {path}")


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
