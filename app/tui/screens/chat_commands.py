"""Slash commands: what is typed instead of a key."""

from __future__ import annotations

from dataclasses import replace

from app.chat import sampling_form, slash
from app.chat.figures import can_continue
from app.chat.store.records import Role
from app.tui.screens.chat_panels import ChatPanels
from runtimes.errors import IngotError


class ChatCommands(ChatPanels):
    """Runs them, and offers those that fit what is typed."""

    def offer_commands(self, text: str) -> None:
        """The menu above the prompt, for what is typed now."""
        if not slash.is_command(text):
            self.menu.hide()
            return
        offered = slash.candidates(text, self._models())
        self.menu.offer(offered)

    def complete_command(self) -> None:
        """Tab: what is marked, else as far as all that fits agrees."""
        text = self.prompt.text
        if (marked := self.menu.take()) is not None:
            self.prompt.fill(marked)
            return
        offered = [one.text for one in slash.candidates(text, self._models())]
        if not offered:
            return
        common = _common(offered)
        self.prompt.fill(common if len(common) > len(text) else offered[0])

    def _models(self) -> list[str]:
        host = self.services.host
        return [host.model] if host.model else []

    async def run_command(self, text: str) -> bool:
        """Do what is typed; False, and an error above the prompt, when it is no command or a wrong
        one."""
        try:
            command = slash.parse(text)
            if command is None:
                return False
            self.menu.hide()
            typed = self.prompt.text  # since then: it belongs where the command leads
            self.prompt.fill("")
            try:
                await self._run_one(command)
            finally:
                if typed:
                    self.prompt.fill(self.prompt.text + typed)
        except IngotError as error:
            self.prompt.give_back(text)
            self.call_after_refresh(self.menu.error, str(error))
            return False
        self.prompt.earlier.reset()
        return True

    async def _run_one(self, command: slash.Command) -> None:
        match command:
            case slash.New():
                await self.action_new()
            case slash.Chats():
                self.action_chats()
            case slash.Model(name=None):
                self.action_models()
            case slash.Model(name=str(name)):
                self.load(name)
            case slash.System(text=None):
                self.action_system()
            case slash.System(text=str(system)):
                self.conversation.update(system=system or None)
                self.say("System message set." if system else "No system message.")
                self.chat_changed()
            case slash.Set(name=None):
                self.action_sampling()
            case slash.Set(name=str(name)):
                self._set(name, command)
            case slash.Attach(path=None):
                self.action_attach()
            case slash.Attach(path=str(path)):
                self.attach_path(path)
            case slash.Export(path=path):
                self.action_export(path)
            case slash.Copy():
                self.action_copy()
            case slash.Regen():
                await self.action_regenerate()
            case slash.Edit():
                self.action_edit()
            case slash.Continue():
                self.action_continue()
            case slash.Stop():
                if not self.interrupt():
                    self.say("Nothing is being written.")
            case slash.Compare():
                await self._compare()
            case slash.Show(mode=mode):
                await self.app.run_action(f"app.switch_mode('{mode}')")
            case slash.Help():
                await self.app.run_action("app.help")
            case slash.Quit():
                self.app.exit()

    async def _compare(self) -> None:
        """Ask several files what was asked last here."""
        from app.tui.screens.compare import CompareScreen

        await self.app.run_action("app.switch_mode('compare')")
        screen = self.app.screen
        if self.path and isinstance(screen, CompareScreen):
            screen.call_after_refresh(screen.action_from_chat)

    def _set(self, name: str, command: slash.Set) -> None:
        defaults = self.services.config.sampling
        now = sampling_form.from_mapping(self.conversation.chat.sampling, defaults)
        value = None if command.default else command.value
        changed = (
            replace(now, seed=None)
            if name == "seed" and value is None
            else sampling_form.changed(now, name, value, defaults)
        )
        self.conversation.update(sampling=sampling_form.to_mapping(changed, defaults))
        said = sampling_form.summary(changed, defaults)
        self.say(f"Sampling: {said}" if said else "Sampling is as the settings say.")
        self.chat_changed()

    def can_go_on(self) -> bool:
        """The last message is an answer that was cut or stopped."""
        last = self.path[-1] if self.path else None
        return last is not None and last.role is Role.ASSISTANT and can_continue(last)


def _common(texts: list[str]) -> str:
    """The longest beginning of all."""
    first, last = min(texts), max(texts)
    length = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
    )
    return first[:length]
