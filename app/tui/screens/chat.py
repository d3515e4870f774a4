"""The chat: its keys, and what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from textual import on
from textual.widgets import TextArea

from app.chat import sampling_form, slash
from app.chat.answering import PendingAnswer
from app.chat.attachments import read_attachment
from app.chat.figures import can_continue
from app.chat.store.records import Attachment, Message, Role, State
from app.chat.thinking import answer_of
from app.tui.app import app_of
from app.tui.keys import key
from app.tui.screens.chat_frame import ChatFrame
from app.tui.textual_patches import background
from app.tui.widgets.chat_sidebar import ChatSidebar
from app.tui.widgets.prompt import Prompt
from app.tui.widgets.welcome import Starter
from runtimes.errors import IngotError, RequestError
from runtimes.thinking import choice_of

if TYPE_CHECKING:
    from textual.screen import Screen
    from textual.widgets import Markdown

    from app.models.catalog import ModelEntry
    from app.tui.screens.chats import ChatChoice
    from app.tui.widgets.prose import CodeBlock

_WIDE = 140  # columns, from which on the list of chats is beside the chat


class ChatScreen(ChatFrame):
    """The base screen of the chat mode."""

    MODE = "chat"
    HELP = """
    Chat with the loaded model. **[chat.stop esc]** stops an answer and keeps what has come.
    **[chat.select ctrl+up]** goes to the messages: up and down select one, and then
    **[chat.regenerate ctrl+r]** asks again, **[message.edit e]** edits, **[chat.copy ctrl+y]**
    copies, **[message.thinking space]** opens what the model thought, **[chat.before alt+←]** and
    **[chat.after alt+→]** show another branch.
    """
    AUTO_FOCUS = "Prompt"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_WIDE, "-wide")]
    CSS_PATH = [
        "chat.tcss",
        "../widgets/chat_sidebar.tcss",
        "../widgets/message_view.tcss",
        "../widgets/transcript.tcss",
        "../widgets/prompt.tcss",
    ]
    BINDINGS = [
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
        key("f8", "chat.attach", "Attach", "a text file or document", show=True),
        key("f9", "chat.export", "Export", "to Markdown or JSON"),
        key("ctrl+l", "chat.rename", "Rename", "this chat"),
        key("pageup", "chat.pageup", "Page up", action="page(-1)"),
        key("pagedown", "chat.pagedown", "Page down", action="page(1)"),
        key("ctrl+end", "chat.end", "To the end"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._refused: str | None = None  # a command that failed, while it stands in the prompt
        self._at_branch: tuple[int | None, int | None] = (None, None)  # its message, and the leaf

    # What widgets ask for

    @on(Prompt.Sent)
    async def _sent(self, event: Prompt.Sent) -> None:
        if slash.is_command(event.text):
            await self._run(event.text)
        else:
            await self.answer.send(slash.plain(event.text))

    @on(TextArea.Changed)
    def _typed(self) -> None:
        self._offer(self.prompt.text)
        self.keep_soon()
        self.chat_changed()

    def action_select_last(self) -> None:
        if self.transcript.views:
            self.transcript.select(self.transcript.views[-1])

    async def action_select(self, step: int) -> None:
        """Another message; the prompt is below the last."""
        if not await self.transcript.move(step):
            self.prompt.focus()

    def action_unqueue(self, at: int) -> None:
        """Take a message that waits back into the prompt."""
        self.answer.unqueue(at)
        self.prompt.focus()

    @on(ChatSidebar.Opened)
    async def _opened(self, event: ChatSidebar.Opened) -> None:
        await self.open_chat(event.chat, event.message)

    @on(Starter.Taken)
    def _begin_with(self, event: Starter.Taken) -> None:
        """Fill the prompt with a beginning. Walking to earlier prompts brings back the text before
        it."""
        self.put_away()
        self.prompt.fill(event.text)
        self.prompt.focus()

    # By their names: these widgets are imported with the first message.

    def on_code_block_copied(self, event: CodeBlock.Copied) -> None:
        self.copy_text(event.code)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """A model may link to anything: the address is copied, not opened."""
        self.app.copy_to_clipboard(event.href)
        self.notify(f"Address copied: {event.href}")

    def action_page(self, step: int) -> None:
        shown = self.transcript
        turn = shown.scroll_page_up if step < 0 else shown.scroll_page_down
        turn(animate=False)

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

    # Commands

    def _offer(self, text: str) -> None:
        """The menu above the prompt, for what is typed now."""
        if text == self._refused:  # its error is shown
            return
        self._refused = None
        if slash.is_command(text):
            self.menu.offer(self._candidates(text))
        else:
            self.menu.hide()

    def action_complete(self) -> None:
        """Tab: what is marked, else as far as all that fits agrees."""
        prompt = self.prompt
        if (marked := self.menu.take()) is not None:
            prompt.fill(marked)
        elif offered := [one.text for one in self._candidates(prompt.text)]:
            common = commonprefix(offered)  # noqa: RUF071, letters and not parts of a path
            prompt.fill(common if len(common) > len(prompt.text) else offered[0])

    def _candidates(self, text: str) -> list[slash.SlashChoice]:
        host = self.host
        servers = host.tools.names if host.tools else ()
        return slash.candidates(text, [host.model] if host.model else [], host.adapters, servers)

    async def _run(self, text: str) -> None:
        """Do what is typed; when it is no command or a wrong one, an error stands above it."""
        prompt = self.prompt
        try:
            action = slash.parse(text)
            assert action is not None
            self.menu.hide()
            typed = prompt.text  # since then: it belongs where the command leads
            prompt.fill("")
            try:
                await self.app.run_action(action, self, {"screen": self})
            finally:
                if typed:
                    prompt.fill(prompt.text + typed)
        except IngotError as error:
            prompt.give_back(text)
            self._refused = prompt.text
            self.menu.error(str(error))
        else:
            prompt.earlier.reset()

    # Messages: the selected one, else the last one that fits

    def _chosen(self, role: Role | None = None) -> Message | None:
        """The selected message; else the last one (of the user, or an answer)."""
        view = self.transcript.selected
        if view is not None:
            return self.session.conversation.message(view.message.id)
        return next((m for m in reversed(self.path) if role in (None, m.role)), None)

    def _question(self, message: Message | None) -> Message | None:
        """``message``, or what it answers."""
        if message is None or message.role is Role.USER or message.parent is None:
            return message
        return self.session.conversation.message(message.parent)

    def _said(self, message: Message | None) -> Message | None:
        """The message of the user that ``message`` is, or follows."""
        return message and self.session.conversation.question(message.id)

    def _free(self) -> bool:
        """Whether another answer may be asked for; says so if not."""
        if self.busy:
            self.notify("An answer is being written: [chat.stop esc] stops it.", severity="warning")
        return not self.busy

    def _ask(self, parent: Message, continues: Message | None = None) -> None:
        conversation = self.session.conversation
        self.answer.ask(PendingAnswer(conversation, parent, continues))
        self.prompt.focus()

    def action_regenerate(self) -> None:
        """Another answer, in a branch beside the old one."""
        message = self._question(self._chosen())
        if message is not None and self._free():
            self._ask(message)

    def action_more(self) -> None:
        """Continue an answer that was cut or stopped."""
        message = self._chosen(Role.ASSISTANT)
        if message is None or not self._free():
            return
        if message.calls and message.state in (State.DONE, State.STOPPED):
            self.answer.resume(self.session.conversation, message)
            return
        if not can_continue(message) or message.parent is None:
            self.notify("This answer is whole. [chat.regenerate ctrl+r] asks for another one.")
            return
        self._ask(self.session.conversation.message(message.parent), message)

    def action_edit(self) -> None:
        """Change an earlier message of yours; the old branch stays."""
        message = self._said(self._chosen(Role.USER))
        if message is None or not self._free():
            return
        prompt = self.prompt
        self.session.edit(message, prompt.text)
        prompt.fill(message.text)
        prompt.focus()
        self.show_notice()

    async def action_branch(self, step: int, of: int | None = None) -> None:
        """The branch before or after: at message ``of``, else at the selected one, else at the last
        one that has several."""
        view, conversation, message = self.transcript.selected, self.session.shown, None
        if conversation is not None and of is not None:
            message = conversation.message(of)
        elif view is not None:
            message = view.message
        elif conversation is not None:
            several = (m for m in reversed(self.path) if len(conversation.siblings(m.id)) > 1)
            message = self._switched() or next(several, None)
        if conversation is None or message is None or len(conversation.siblings(message.id)) < 2:
            self.notify(
                "There is one branch only. [chat.edit alt+e] and [chat.regenerate ctrl+r] make"
                " others."
            )
            return
        with self.errors_told():
            now = conversation.switch(message.id, step)
            self._at_branch = (now.id, conversation.leaf)
            await self.sync()
            if view is not None:
                await self.transcript.reveal(now.id)
        self.chat_changed()

    def _switched(self) -> Message | None:
        """The message that was switched to last, while nothing else has changed the branch: the way
        back begins where the way there ended."""
        id, leaf = self._at_branch
        path = self.path
        return next((m for m in path if m.id == id and path[-1].id == leaf), None)

    async def action_drop(self) -> None:
        """Leave the selected message out of what the model is sent, or take it in again."""
        view = self.transcript.selected
        if view is None or (self.turn is not None and self.turn.message.id == view.message.id):
            return
        with self.errors_told():
            message = self.session.conversation.message(view.message.id)
            self.session.conversation.drop([message.id], not message.dropped)
        await self.sync()
        self.chat_changed()

    def action_copy(self) -> None:
        """Copy a message, or a block of code in it."""
        from app.tui.screens.dialogs import CopyChoice
        from app.tui.widgets.prose import copyable

        message = self._chosen(Role.ASSISTANT)
        if message is None:
            return
        offered = copyable(answer_of(message.text) or message.text)
        if len(offered) == 1:
            self.copy_text(offered[0][1])
        else:
            self._open(CopyChoice(offered), self.copy_text)

    def copy_text(self, text: str) -> None:
        """Into the clipboard, through the terminal."""
        self.app.copy_to_clipboard(text)
        lines = text.count("\n") + 1
        self.notify(f"Copied {len(text):,} characters, {lines:,} line{'s' if lines > 1 else ''}.")

    # Chats

    async def action_new(self) -> None:
        if self.session.shown is not None and not self.path:
            self.notify("This chat is empty.")
        else:
            await self.new_chat()

    def action_chats(self, query: str = "") -> None:
        """Open an earlier chat, looked for with ``query``: in the list beside the chat if that is
        there and has not the focus yet, else in one of its own."""
        from app.tui.screens.chats import ChatsScreen

        if not query and self.sidebar.display and not self.sidebar.has_focus_within:
            self.sidebar.enter()
            return

        async def chosen(choice: ChatChoice | None) -> None:
            if choice is None:
                if (shown := self.session.shown) is not None:
                    shown.chat = self.services.store.chat(shown.chat.id)  # it may be renamed
                self.show_title()
            elif choice.chat is None:
                await self.new_chat()
            else:
                await self.open_chat(choice.chat.id, choice.message)

        panel = ChatsScreen(self.services.store, self.session.chat_id, query)
        self.app.push_screen(panel, chosen)

    def action_sidebar(self) -> None:
        """Show the list beside the chat, or hide it."""
        wanted = self.sidebar.has_class("-hidden")
        if not wanted and self.sidebar.has_focus_within:
            self.prompt.focus()
        self.sidebar.set_class(not wanted, "-hidden")
        app_of(self).remember("chat.sidebar", wanted)
        if wanted and not self.has_class("-wide"):
            self.notify(
                "The list of chats is shown where the terminal is at least 140 columns wide."
            )

    def action_rename(self) -> None:
        from app.tui.screens.dialogs import AskScreen

        def named(title: str) -> None:
            with self.errors_told():
                self.session.conversation.rename(title)
            self.show_title()

        self._open(AskScreen("Title of this chat", self.session.conversation.chat.title), named)

    def action_export(self, path: str = "") -> None:
        from app.tui.screens.files import ExportScreen

        if not self.path:
            self.notify("There is nothing to export yet.")
            return
        panel = ExportScreen(self.session.conversation, path)
        self._open(panel, lambda file: self.notify(f"Written to {file}"))

    # What goes with the next answer

    def action_models(self, model: str = "") -> None:
        from app.tui.screens.models import ModelsScreen

        def chosen(found: tuple[ModelEntry, ...]) -> None:
            self.load(found[0].model, found[0])

        if model:
            self.load(model)
            return
        choice = self.host.choice
        current = str(choice.file.path) if choice else None
        self._open(ModelsScreen(app_of(self).named, current), chosen)

    def action_adapter(self, name: str = "") -> None:
        """The adapter of that name answers from now on; ``off``: the model as it is."""
        host = self.host
        if name or not host.adapters:
            host.use(None if name == "off" and name not in host.adapters else name)
            app_of(self).engine_changed.publish(host.state)
        else:
            names = ", ".join(host.adapters)
            self.notify(f"{host.adapter or 'No adapter'} is on. There is: {names}, or off.")

    @background
    async def action_tools(self, server: str = "") -> None:
        """List the tool servers and what they have; turn ``server`` on or off in this chat."""
        tools, session = self.host.tools, self.session
        with self.errors_told():
            if tools is None or not tools.names:
                raise RequestError(
                    "there are no tools: [mcp.servers.NAME] in the settings adds a server of tools;"
                    " a model at --url has none"
                )
            if server:
                tools.require([server])
                conversation = session.conversation
                on = server not in conversation.servers(self.host)
                conversation.update(tools={**conversation.chat.tools, server: on})
            conversation, _ = session.next_prompt("")
            used = conversation.servers(self.host)
            problems = await asyncio.to_thread(tools.open, used)
            lines = []
            for name in tools.names:
                names = ", ".join(one.function["name"] for one in tools.offered([name]))
                state = f"on: {problems.get(name, names)}" if name in used else "off"
                lines.append(f"{name} is {state}")
            self.notify("\n".join([*lines, "/tools SERVER turns one on or off in this chat."]))
        self.chat_changed()

    def action_find(self, words: str = "") -> None:
        """Models on the hub; one that was downloaded there can be loaded at once."""
        from app.tui.screens.find import FindScreen

        self._open(FindScreen(words), self.load)

    def action_attach(self, path: str = "") -> None:
        """A text file or document that goes with the next message."""
        from app.tui.screens.files import AttachScreen

        if path:
            self._read(path)
        else:
            self._open(AttachScreen(), self._add_file)

    @background
    async def _read(self, path: str) -> None:
        with self.errors_told():
            attached = await asyncio.to_thread(read_attachment, path)
            if attached.warning:
                self.notify(attached.warning)
            self._add_file(attached.attachment)

    def _add_file(self, attachment: Attachment) -> None:
        self.session.attached.append(attachment)
        self.show_notice()
        self.chat_changed()

    def action_detach(self, number: int) -> None:
        """Take an attached file away."""
        if self.session.attached:
            del self.session.attached[number]
            self.show_notice()
            self.chat_changed()

    def action_system(self, text: str | None = None) -> None:
        from app.tui.screens.answering import SystemScreen

        session = self.session
        if text is not None:
            session.conversation.update(system=text or None)
            self.notify("System message set." if text else "No system message.")
            self.chat_changed()
            return
        chat = session.shown.chat if session.shown else None
        sampling = sampling_form.parameters(chat.sampling if chat else {})
        panel = SystemScreen(chat.system if chat else session.system, sampling)
        self._open(panel, self._change)

    def action_raw(self) -> None:
        """Send the text of this chat as it is, without the chat template; or with it again."""
        host = self.host
        if host.plain:
            why = "--raw was given" if host.raw else "this model has no chat template"
            self.notify(f"Text is sent as it is anyway: {why}.")
            return
        raw = not self.session.conversation.chat.raw
        self._change({"raw": raw})
        self.show_state()
        continues = "Raw: text is sent as it is, and the model continues it. /raw ends this."
        self.notify(continues if raw else "Messages are sent with the chat template again.")

    def action_sampling(self, name: str = "", *value: Any) -> None:
        """Set a parameter, without a ``value`` to its default; without a ``name``, ask for all."""
        from app.tui.screens.answering import SamplingScreen

        if not name:
            shown = self.session.shown
            sampling = sampling_form.parameters(shown.chat.sampling if shown else {})
            panel = SamplingScreen(sampling)
            self._open(panel, lambda sampling: self._change({"sampling": sampling}))
            return
        conversation, defaults = self.session.conversation, self.services.config.sampling
        wanted = value[0] if value else getattr(defaults, name)
        changed = replace(self.params(conversation), **{name: wanted})
        conversation.update(sampling=sampling_form.to_mapping(changed, defaults))
        host = self.services.host
        if name == "thinking" and host.engine is not None:
            template = host.template or host.engine.model.chat_template
            if why := choice_of(template, changed.thinking).unknown:
                self.notify(why, severity="warning")
        said = sampling_form.summary(changed, defaults)
        self.notify(f"Sampling: {said}" if said else "Sampling is as the settings say.")
        self.chat_changed()

    @background
    async def action_form(self, kind: str = "", text: str = "") -> None:
        """Have answers keep to a schema or to choices, until that is turned off."""
        from app.chat.structured import constraint_of

        conversation, defaults = self.session.conversation, self.services.config.sampling
        with self.errors_told():
            if text:
                wanted = await asyncio.to_thread(constraint_of, kind, text)
                changed = replace(self.params(conversation), constraint=wanted)
                conversation.update(sampling=sampling_form.to_mapping(changed, defaults))
                self.show_notice()
            said = sampling_form.form_words(conversation.chat.sampling)
            how = f"Answers are {said}. /schema off ends this." if said else "Answers are free."
            self.notify(how)

    def _change(self, changes: dict[str, Any]) -> None:
        """Change what the chat says of the next answer; the form of answers stays."""
        with self.errors_told():
            conversation = self.session.conversation
            kept = conversation.chat.sampling
            if "sampling" in changes and sampling_form.FORM in kept:
                changes["sampling"] |= {sampling_form.FORM: kept[sampling_form.FORM]}
            conversation.update(**changes)
        self.chat_changed()

    def _open(self, panel: Screen[Any], then: Callable[[Any], object]) -> None:
        """Open a panel; ``then`` gets what it ends with, unless it was left."""

        def ended(found: Any) -> None:
            if found is not None:
                then(found)

        self.app.push_screen(panel, ended)

    # What only slash commands do

    def action_halt(self) -> None:
        if not self.interrupt():
            self.notify("Nothing is being written.")

    async def action_compare(self) -> None:
        """Ask several files what was asked last here."""
        app = self.app
        await app.run_action("app.switch_mode('compare')")
        if self.path:
            app.screen.call_after_refresh(app.run_action, "screen.from_chat")

    def action_quit(self) -> None:
        """Without a question."""
        self.app.exit()
