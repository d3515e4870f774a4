"""``ChatActions``: what keys and slash commands do to the chat, its messages and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.chat import sampling_form
from app.chat.attachments import read_attachment
from app.chat.figures import can_continue
from app.chat.store.records import Attachment, Message, Role
from app.chat.thinking import answer_of
from app.tui.app import app_of
from app.tui.screens.chat_answer import PendingAnswer

if TYPE_CHECKING:
    from app.models.entries import ModelEntry
    from app.tui.screens.answering import SystemChoice
    from app.tui.screens.chat import ChatScreen
    from app.tui.screens.chats import ChatChoice


class ChatActions:
    """Each public method is the screen's action of its name. Arguments are what was typed after a
    slash command; without them, a panel asks."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._at_branch: tuple[int | None, int | None] = (None, None)  # its message, and the leaf

    # Messages: the selected one, else the last one that fits

    def _chosen(self, role: Role | None = None) -> Message | None:
        """The selected message; else the last one (of the user, or an answer)."""
        view = self._screen.transcript.selected
        if view is not None:
            return self._screen.session.conversation.message(view.message.id)
        return next((m for m in reversed(self._screen.path) if role in (None, m.role)), None)

    def _question(self, message: Message | None) -> Message | None:
        """``message``, or what it answers."""
        if message is None or message.role is Role.USER or message.parent is None:
            return message
        return self._screen.session.conversation.message(message.parent)

    def _free(self) -> bool:
        """Whether another answer may be asked for; says so if not."""
        if self._screen.busy:
            self._screen.warn_busy()
        return not self._screen.busy

    def _ask(self, parent: Message, continues: Message | None = None) -> None:
        conversation = self._screen.session.conversation
        self._screen.answer.ask(PendingAnswer(conversation, parent, continues))
        self._screen.prompt.focus()

    def regenerate(self) -> None:
        """Another answer, in a branch beside the old one."""
        message = self._question(self._chosen())
        if message is not None and self._free():
            self._ask(message)

    def more(self) -> None:
        """Continue an answer that was cut or stopped."""
        message = self._chosen(Role.ASSISTANT)
        if message is None or not self._free():
            return
        if not can_continue(message) or message.parent is None:
            self._screen.say("This answer is whole. [chat.regenerate ctrl+r] asks for another one.")
            return
        self._ask(self._screen.session.conversation.message(message.parent), message)

    def edit(self) -> None:
        """Change an earlier message of yours; the old branch stays."""
        message = self._question(self._chosen(Role.USER))
        if message is None or not self._free():
            return
        prompt = self._screen.prompt
        self._screen.session.edit(message, prompt.text)
        prompt.fill(message.text)
        prompt.focus()
        self._screen.show_notice()

    async def branch(self, step: int, of: int | None = None) -> None:
        """The branch before or after: at message ``of``, else at the selected one, else at the last
        one that has several."""
        screen, view = self._screen, self._screen.transcript.selected
        conversation = screen.session.shown
        message = None
        if of is not None and conversation is not None:
            message = conversation.message(of)
        elif view is not None:
            message = view.message
        elif conversation is not None:
            several = (m for m in reversed(screen.path) if len(conversation.siblings(m.id)) > 1)
            message = self._switched() or next(several, None)
        if conversation is None or message is None or len(conversation.siblings(message.id)) < 2:
            screen.say(
                "There is one branch only. [chat.edit alt+e] and [chat.regenerate ctrl+r] make"
                " others."
            )
            return
        with screen.errors_told():
            now = conversation.switch(message.id, step)
            self._at_branch = (now.id, conversation.leaf)
            await screen.sync()
            if view is not None:
                await screen.transcript.reveal(now.id)
        screen.chat_changed()

    def _switched(self) -> Message | None:
        """The message that was switched to last, while nothing else has changed the branch: the way
        back begins where the way there ended."""
        id, leaf = self._at_branch
        path = self._screen.path
        return next((m for m in path if m.id == id and path[-1].id == leaf), None)

    async def drop(self) -> None:
        """Leave the selected message out of what the model is sent, or take it in again."""
        screen, view = self._screen, self._screen.transcript.selected
        if view is None or (screen.turn is not None and screen.turn.message.id == view.message.id):
            return
        with screen.errors_told():
            message = screen.session.conversation.message(view.message.id)
            screen.session.conversation.drop([message.id], not message.dropped)
        await screen.sync()
        screen.chat_changed()

    def copy(self) -> None:
        """Copy a message, or a block of code in it."""
        from app.tui.screens.dialogs import CopyChoice
        from app.tui.widgets.segments import copyable

        message = self._chosen(Role.ASSISTANT)
        if message is None:
            return
        offered = copyable(answer_of(message.text) or message.text)
        if len(offered) == 1:
            self._copy(offered[0][1])
        else:
            self._screen.app.push_screen(CopyChoice(offered), self._copy)

    def _copy(self, text: str | None) -> None:
        if text is not None:
            self.copy_text(text)

    def copy_text(self, text: str) -> None:
        """Into the clipboard, through the terminal."""
        self._screen.app.copy_to_clipboard(text)
        lines = text.count("\n") + 1
        self._screen.say(
            f"Copied {len(text):,} characters, {lines:,} line{'s' if lines > 1 else ''}."
        )

    # Chats

    async def new(self) -> None:
        if self._screen.session.shown is not None and not self._screen.path:
            self._screen.say("This chat is empty.")
        else:
            await self._screen.new_chat()

    def chats(self, query: str = "") -> None:
        """Open an earlier chat, looked for with ``query``: in the list beside the chat if that is
        there and has not the focus yet, else in one of its own."""
        from app.tui.screens.chats import ChatsScreen

        screen = self._screen
        if not query and screen.sidebar.display and not screen.sidebar.has_focus_within:
            screen.sidebar.enter()
            return

        async def chosen(choice: ChatChoice | None) -> None:
            if choice is None:
                if (shown := screen.session.shown) is not None:
                    shown.chat = screen.services.store.chat(shown.chat.id)  # it may be renamed
                screen.show_title()
            elif choice.chat is None:
                await screen.new_chat()
            else:
                await screen.open_chat(choice.chat.id, choice.message)

        panel = ChatsScreen(screen.services.store, screen.session.chat_id, query)
        screen.app.push_screen(panel, chosen)

    def sidebar(self) -> None:
        """Show the list beside the chat, or hide it."""
        screen = self._screen
        wanted = screen.sidebar.has_class("-hidden")
        if not wanted and screen.sidebar.has_focus_within:
            screen.prompt.focus()
        screen.sidebar.set_class(not wanted, "-hidden")
        app_of(screen).remember("chat.sidebar", wanted)
        if wanted and not screen.has_class("-wide"):
            screen.say(
                "The list of chats is shown where the terminal is at least 140 columns wide."
            )

    def rename(self) -> None:
        from app.tui.screens.dialogs import AskScreen

        def named(title: str | None) -> None:
            if title is not None:
                with self._screen.errors_told():
                    self._screen.session.conversation.rename(title)
            self._screen.show_title()

        title = self._screen.session.conversation.chat.title
        self._screen.app.push_screen(AskScreen("Title of this chat", title), named)

    def export(self, path: str = "") -> None:
        from app.tui.screens.files import ExportScreen

        def written(file: Path | None) -> None:
            if file is not None:
                self._screen.say(f"Written to {file}")

        if not self._screen.path:
            self._screen.say("There is nothing to export yet.")
            return
        panel = ExportScreen(self._screen.session.conversation, path)
        self._screen.app.push_screen(panel, written)

    # What goes with the next answer

    def models(self, model: str = "") -> None:
        from app.tui.screens.models import ModelsScreen

        def chosen(found: tuple[ModelEntry, ...] | None) -> None:
            if found:
                self._screen.load(found[0].model, found[0])

        if model:
            self._screen.load(model)
            return
        choice = self._screen.host.choice
        current = str(choice.file.path) if choice else None
        self._screen.app.push_screen(ModelsScreen(app_of(self._screen).named, current), chosen)

    def adapter(self, name: str = "") -> None:
        """The adapter of that name answers from now on; ``off``: the model as it is."""
        screen, host = self._screen, self._screen.host
        if name or not host.adapters:
            host.use(None if name == "off" and name not in host.adapters else name)
            app_of(screen).engine_changed.publish(host.state)
        else:
            names = ", ".join(host.adapters)
            screen.say(f"{host.adapter or 'No adapter'} is on. There is: {names}, or off.")

    def find(self, words: str = "") -> None:
        """Models on the hub; one that was downloaded there can be loaded at once."""
        from app.tui.screens.find import FindScreen

        def chosen(name: str | None) -> None:
            if name is not None:
                self._screen.load(name)

        self._screen.app.push_screen(FindScreen(words), chosen)

    def attach(self, path: str = "") -> None:
        """A text file that goes with the next message."""
        from app.tui.screens.files import AttachScreen

        if path:
            self._screen.run_worker(
                lambda: self._read(path), thread=True, exit_on_error=False, group="attach"
            )
        else:
            self._screen.app.push_screen(AttachScreen(), self._attach)

    def _read(self, path: str) -> None:
        with self._screen.errors_told():
            attached = read_attachment(path)
            if attached.warning:
                self._screen.call_later(self._screen.say, attached.warning)
            self._screen.call_later(self._attach, attached.attachment)

    def _attach(self, attachment: Attachment | None) -> None:
        if attachment is not None:
            self._screen.session.attached.append(attachment)
            self._screen.show_notice()
            self._screen.chat_changed()

    def detach(self, number: int) -> None:
        """Take an attached file away."""
        if self._screen.session.attached:
            del self._screen.session.attached[number]
            self._screen.show_notice()
            self._screen.chat_changed()

    def system(self, text: str | None = None) -> None:
        from app.tui.screens.answering import SystemScreen

        def chosen(choice: SystemChoice | None) -> None:
            if choice is not None and choice.sampling is not None:
                self._change(system=choice.system, sampling=dict(choice.sampling))
            elif choice is not None:
                self._change(system=choice.system)

        screen, session = self._screen, self._screen.session
        if text is not None:
            session.conversation.update(system=text or None)
            screen.say("System message set." if text else "No system message.")
            screen.chat_changed()
            return
        chat = session.shown.chat if session.shown else None
        panel = SystemScreen(chat.system if chat else session.system, chat.sampling if chat else {})
        screen.app.push_screen(panel, chosen)

    def raw(self) -> None:
        """Send the text of this chat as it is, without the chat template; or with it again."""
        screen, host = self._screen, self._screen.host
        if host.plain:
            why = "--raw was given" if host.raw else "this model has no chat template"
            screen.say(f"Text is sent as it is anyway: {why}.")
            return
        raw = not screen.session.conversation.chat.raw
        self._change(raw=raw)
        screen.show_state()
        if raw:
            screen.say("Raw: text is sent as it is, and the model continues it. /raw ends this.")
        else:
            screen.say("Messages are sent with the chat template again.")

    def sampling(self, name: str = "", *value: Any) -> None:
        """Set a parameter, without a ``value`` to its default; without a ``name``, ask for all."""
        from app.tui.screens.answering import SamplingScreen

        def chosen(sampling: Mapping[str, Any] | None) -> None:
            if sampling is not None:
                self._change(sampling=dict(sampling))

        screen = self._screen
        if not name:
            shown = screen.session.shown
            panel = SamplingScreen(shown.chat.sampling if shown else {})
            screen.app.push_screen(panel, chosen)
            return
        conversation, defaults = screen.session.conversation, screen.services.config.sampling
        wanted = value[0] if value else getattr(defaults, name)
        changed = replace(screen.params(conversation), **{name: wanted})
        conversation.update(sampling=sampling_form.to_mapping(changed, defaults))
        said = sampling_form.summary(changed, defaults)
        screen.say(f"Sampling: {said}" if said else "Sampling is as the settings say.")
        screen.chat_changed()

    def _change(self, **changes: Any) -> None:
        """Change what the chat says of the next answer."""
        with self._screen.errors_told():
            self._screen.session.conversation.update(**changes)
        self._screen.chat_changed()

    # What only slash commands do

    def halt(self) -> None:
        if not self._screen.interrupt():
            self._screen.say("Nothing is being written.")

    async def compare(self) -> None:
        """Ask several files what was asked last here."""
        app = self._screen.app
        await app.run_action("app.switch_mode('compare')")
        if self._screen.path:
            app.screen.call_after_refresh(app.run_action, "screen.from_chat")

    def quit(self) -> None:
        """Without a question."""
        self._screen.app.exit()
