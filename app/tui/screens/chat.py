"""The chat: its widgets, its keys, and the parts that do what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Static, TextArea

from app.chat import slash
from app.chat.conversation import Conversation
from app.chat.host import EngineHost, HostState
from app.chat.sampling_form import from_mapping
from app.chat.session import Session
from app.chat.store.records import Message
from app.chat.turn import Turn
from app.figures import rate
from app.tui.app import app_of, services_of
from app.tui.keys import key, told
from app.tui.screens.chat_actions import ChatActions
from app.tui.screens.chat_answer import AnswerController
from app.tui.screens.chat_send import Sender
from app.tui.services import Services
from app.tui.widgets.chat_sidebar import ChatSidebar
from app.tui.widgets.chat_title import ChatTitle
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.prompt import Prompt, PromptHistory, SlashMenu
from app.tui.widgets.prompt_box import PromptBox
from app.tui.widgets.queued import QueuedMessages
from app.tui.widgets.transcript import Transcript
from app.tui.widgets.welcome import Starter
from runtimes.errors import IngotError
from runtimes.request import SamplingParams

if TYPE_CHECKING:
    from textual.widgets import Markdown

    from app.models.entries import ModelEntry as ModelEntry
    from app.tui.widgets.prose import CodeBlock

_PROMPTS = 500
_WIDE = 140  # columns, from which on the list of chats is beside the chat


class ChatScreen(ModeScreen):
    """The base screen of the chat mode."""

    MODE = "chat"
    HELP = """
    Chat with the loaded model. **[chat.stop esc]** stops an answer and keeps what has come.
    **[chat.select ctrl+up]** goes to the messages: up and down select one, and then
    **[chat.regenerate ctrl+r]** asks again, **[message.edit e]** edits, **[chat.copy ctrl+y]**
    copies, **[message.thinking space]** opens what the model thought, **[chat.before alt+←]** and
    **[chat.after alt+→]** show another branch.
    """
    AUTO_FOCUS: ClassVar[str | None] = "Prompt"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_WIDE, "-wide")]  # noqa: RUF012, as Textual has it
    CSS_PATH: ClassVar[str | PurePath | list[str | PurePath] | None] = [
        "chat.tcss",
        "../widgets/chat_sidebar.tcss",
        "../widgets/message_view.tcss",
        "../widgets/transcript.tcss",
        "../widgets/prompt.tcss",
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "chat.stop", "Stop", "the answer", show=True, priority=False),
        key("ctrl+n", "chat.new", "New", "an empty chat", show=True),
        key("ctrl+o", "chat.chats", "Chats", "earlier ones, and search", show=True),
        key("alt+o", "chat.sidebar", "List of chats", "show or hide it, where there is room"),
        key("ctrl+t", "chat.models", "Model", "load another one", show=True),
        key("alt+m", "chat.find", "Find models", "on the hub"),
        key("ctrl+r", "chat.regenerate", "Again", "regenerate the answer, in a branch", show=True),
        # Not before the prompt: ctrl+e is its end of a line.
        key("alt+e,ctrl+e", "chat.edit", "Edit", "a message of yours, in a branch", priority=False),
        key("ctrl+g", "chat.continue", "Go on", "continue an answer that was cut", action="more"),
        key("alt+left", "chat.before", "Branch before", action="branch(-1)"),
        key("alt+right", "chat.after", "Branch after", action="branch(1)"),
        key("ctrl+y", "chat.copy", "Copy", "the answer, or a block of its code"),
        key("ctrl+s", "chat.sampling", "Sampling", "temperature and the like", show=True),
        key("f7", "chat.system", "System", "message and presets"),
        key("f8", "chat.attach", "Attach", "a text file", show=True),
        key("f9", "chat.export", "Export", "to Markdown or JSON"),
        key("ctrl+l", "chat.rename", "Rename", "this chat"),
        key("pageup", "chat.pageup", "Page up", action="page(-1)"),
        key("pagedown", "chat.pagedown", "Page down", action="page(1)"),
        key("ctrl+end", "chat.end", "To the end"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.transcript = Transcript()
        self.sidebar = ChatSidebar()
        self.queued = QueuedMessages()
        self.menu = SlashMenu()
        self.prompt = Prompt(self.menu)
        self.box = PromptBox(self.prompt)
        self.bar = ChatTitle(self.transcript)
        self.notice = Static(id="chat-notice", markup=False)
        self.answer = AnswerController(self)
        self.sender = Sender(self)
        self.send = self.sender.send
        self.prompt.recall = self.sender.unqueue
        self.action_complete = self.sender.complete
        self.actions = ChatActions(self)  # a method of it is the action of its name
        for name in vars(ChatActions):
            if not name.startswith("_"):
                setattr(self, f"action_{name}", getattr(self.actions, name))

    def contents(self) -> ComposeResult:
        self.session = Session(self.services.store, self.host)  # here: they need the app
        with Horizontal():
            yield self.sidebar
            with Vertical():
                yield self.bar
                yield self.transcript
                with Vertical(id="chat-bottom"):
                    yield self.notice
                    yield self.queued
                    yield self.menu
                    yield self.box

    @on(events.Mount)
    async def _begin(self) -> None:
        """Show the chat that was asked for, or an empty one."""
        app_of(self).engine_changed.subscribe(self, self._engine_changed)
        self.sidebar.set_class(not self.services.config.chat.sidebar, "-hidden")
        start = self.services.start
        self._clock = self.set_interval(1.0, self.show_status, pause=True)
        self.prompt.earlier = PromptHistory(self.services.store.prompts(_PROMPTS))
        self.session.system = start.system or self.services.config.chat.system
        if start.chat is not None:
            await self.open_chat(start.chat)
            if start.system is not None and self.session.shown is not None:
                self.session.shown.update(system=start.system)
        else:
            await self.sync()
        self.show_state()

    def on_unmount(self) -> None:
        self.session.keep_drafts(*self.session.unsent(self.prompt.text), durable=True)
        self.answer.close()

    # What the parts work with

    @property
    def services(self) -> Services:
        return services_of(self)

    @property
    def host(self) -> EngineHost:
        return self.services.host

    @property
    def path(self) -> Sequence[Message]:
        return self.session.path

    @property
    def turn(self) -> Turn | None:
        return self.answer.turn

    @property
    def plain(self) -> bool:
        """Whether what is typed is continued, and not answered."""
        shown = self.session.shown
        return shown.plain(self.host) if shown is not None else self.host.plain

    @property
    def busy(self) -> bool:
        return self.answer.busy

    def params(self, conversation: Conversation) -> SamplingParams:
        """Sampling as the chat has it, else as the settings say."""
        return from_mapping(conversation.chat.sampling, self.services.config.sampling)

    def load(self, model: str, entry: ModelEntry | None = None) -> None:
        """Load MODEL instead of what is loaded; an answer that is being written ends."""
        if self.turn is not None:
            self.turn.stop()
        app_of(self).load_model(model, entry.options if entry else None)

    # The chat that is shown

    async def open_chat(self, chat: int, message: int | None = None) -> None:
        with self.errors_told():
            conversation = Conversation.open(self.services.store, chat)
            if message is not None:
                conversation.show_message(message)
            await self._show(self.answer.same(conversation))
            if message is not None:
                await self.transcript.reveal(message)

    async def new_chat(self) -> None:
        """An empty chat; the old one is in the list of chats."""
        await self._show(None)
        self.session.system = self.services.config.chat.system

    async def _show(self, conversation: Conversation | None) -> None:
        self.session.show(conversation, self.prompt.text)
        self.prompt.fill(self.session.draft)
        self.sender.give_back_queue()
        await self.sync()
        await self.transcript.to_end()
        self.show_notice()
        self.chat_changed()
        self.prompt.focus()

    async def sync(self) -> None:
        """Show the path as it is now."""
        entries = []
        if self.path:  # imported with the first message
            from app.tui.widgets.message_view import Entry
        for message in self.path:
            among = self.session.conversation.siblings(message.id)
            index = next(i for i, one in enumerate(among, 1) if one.id == message.id)
            entries.append(Entry(message, index, len(among)))
        await self.transcript.sync(entries)
        self.show_title()

    def chat_changed(self) -> None:
        """Another chat is shown, or the shown one has changed: other figures, other tokens."""
        if self.turn is None:
            self.answer.forget_figures()
        self.sender.measure()

    # What keys and widgets ask for

    @on(Prompt.Sent)
    async def _sent(self, event: Prompt.Sent) -> None:
        if slash.is_command(event.text):
            await self.sender.run(event.text)
        else:
            await self.send(slash.plain(event.text))

    @on(TextArea.Changed)
    def _typed(self) -> None:
        self.sender.offer(self.prompt.text)
        self.sender.keep_soon()
        self.chat_changed()

    def action_select_last(self) -> None:
        if self.transcript.views:
            self.transcript.select(self.transcript.views[-1])

    async def action_select(self, step: int) -> None:
        """Another message; the prompt is below the last."""
        if not await self.transcript.move(step):
            self.prompt.focus()

    @on(QueuedMessages.Wanted)
    def _take_back(self, event: QueuedMessages.Wanted) -> None:
        self.sender.unqueue(event.at)
        self.prompt.focus()

    @on(Prompt.Detach)
    def _take_off(self) -> None:
        self.actions.detach(-1)

    @on(ChatSidebar.Opened)
    async def _chosen(self, event: ChatSidebar.Opened) -> None:
        await self.open_chat(event.chat, event.message)

    @on(ChatSidebar.Left)
    def _back(self) -> None:
        self.prompt.focus()

    @on(Starter.Taken)
    def _begin_with(self, event: Starter.Taken) -> None:
        """What was in the prompt can be had back."""
        self.put_away()
        self.prompt.fill(event.text)
        self.prompt.focus()

    # By their names: these widgets are imported with the first message.

    def on_code_block_copied(self, event: CodeBlock.Copied) -> None:
        self.actions.copy_text(event.code)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """A model may link to anything: the address is copied, not opened."""
        self.app.copy_to_clipboard(event.href)
        self.say(f"Address copied: {event.href}")

    def action_page(self, step: int) -> None:
        if step < 0:
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)

    def action_end(self) -> None:
        self.transcript.action_follow()

    def action_stop(self) -> None:
        """Stop the answer: what has come is kept, and so is what is in the prompt. Else go out of
        whatever is open."""
        if self.interrupt():
            return
        if self.menu.has_class("-shown"):
            self.menu.hide()
        elif not self._leave_edit():
            self.prompt.focus()

    def interrupt(self) -> bool:
        """Stop what is being written or waits; False when there is nothing."""
        return self.answer.interrupt()

    def _leave_edit(self) -> bool:
        """Back to the draft; False when nothing was being edited."""
        if not self.session.leave_edit():
            return False
        self.prompt.fill(self.session.draft)
        self.show_notice()
        return True

    def put_away(self) -> bool:
        """Empty the prompt; walking to earlier prompts brings back what was there. False when there
        was nothing."""
        text = self.prompt.text
        if not text.strip():
            return False
        self.prompt.earlier.add(text)
        if not self._leave_edit():
            self.session.put_aside = text
            self.prompt.fill("")
        return True

    # What is told

    def _engine_changed(self, state: HostState) -> None:
        self.answer.watch()
        self.show_state()
        self.chat_changed()

    def show_title(self) -> None:
        shown = self.session.shown
        self.bar.show((shown.chat.title if shown else "") or "New chat")
        self.sidebar.show_chat(self.session.chat_id)

    def show_notice(self) -> None:
        """What is attached, what the prompt is for, and why nothing comes yet."""
        parts = []
        if self.session.editing is not None:
            parts.append(
                "Editing an earlier message: [chat.send enter] sends it as a branch,"
                " [chat.stop esc] leaves it"
            )
        name = "Text, sent as it is" if self.plain else "Message"
        self.box.name_it(name if self.session.editing is None else "Edit a message")
        self.box.show_files(self.session.attached)
        parts += [*self.answer.notice(), *self.sender.notice()]
        self.queued.show(self.session.queued)
        self.notice.update(told(self, "\n".join(parts)))
        self.notice.display = bool(parts)

    def useful(self, action: str) -> bool:
        return action != "stop" or self.busy

    def show_state(self) -> None:
        self.show_notice()
        self.refresh_bindings()
        self.show_status()

    def show_status(self) -> None:
        estimate, app, tps = self.sender.estimate, app_of(self), self.answer.figures.decode_tps
        app.speed, app.decoding = "" if tps is None else rate(tps), self.turn is not None
        note = told(self, self.answer.doing())
        if self.host.state in (HostState.EMPTY, HostState.LOADING):  # seconds are counted
            self._clock.resume()
        else:
            self._clock.pause()
        if self.transcript.welcome.display:
            self.transcript.welcome.show(self.host, note)
        figures = replace(self.answer.figures, note=note)
        if estimate is not None and self.turn is None:
            used, context = estimate.prompt_tokens, estimate.context
            figures = replace(figures, used=used, context=context, estimated=True)
        self.box.show_context(figures)

    @contextmanager
    def errors_told(self) -> Iterator[None]:
        """In any thread: an error ends the block, and is a toast."""
        try:
            yield
        except IngotError as error:
            self.call_later(self.tell, error)

    def tell(self, problem: object) -> None:
        """An error, as a toast."""
        self.notify(str(problem), severity="error", timeout=10, markup=False)

    def say(self, text: str) -> None:
        self.notify(text, timeout=5, markup=False)

    def warn_busy(self) -> None:
        """Why nothing can be asked for now."""
        self.notify("An answer is being written: [chat.stop esc] stops it.", severity="warning")
