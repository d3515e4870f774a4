"""``CommandRunner``: slash commands, what is typed instead of a key."""

from __future__ import annotations

from dataclasses import replace
from os.path import commonprefix
from typing import TYPE_CHECKING, assert_never

from app.chat import sampling_form, slash
from runtimes.errors import IngotError

if TYPE_CHECKING:
    from app.tui.screens.chat import ChatScreen


class CommandRunner:
    """Runs them, and offers those that fit what is typed."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def offer(self, text: str) -> None:
        """The menu above the prompt, for what is typed now."""
        if slash.is_command(text):
            self._screen.menu.offer(slash.candidates(text, self._models()))
        else:
            self._screen.menu.hide()

    def complete(self) -> None:
        """Tab: what is marked, else as far as all that fits agrees."""
        prompt = self._screen.prompt
        if (marked := self._screen.menu.take()) is not None:
            prompt.fill(marked)
        elif offered := [one.text for one in slash.candidates(prompt.text, self._models())]:
            common = commonprefix(offered)  # noqa: RUF071, letters and not parts of a path
            prompt.fill(common if len(common) > len(prompt.text) else offered[0])

    def _models(self) -> list[str]:
        host = self._screen.host
        return [host.model] if host.model else []

    async def run(self, text: str) -> None:
        """Do what is typed; when it is no command or a wrong one, an error stands above it."""
        prompt, menu = self._screen.prompt, self._screen.menu
        try:
            command = slash.parse(text)
            assert command is not None
            menu.hide()
            typed = prompt.text  # since then: it belongs where the command leads
            prompt.fill("")
            try:
                await self._run(command)
            finally:
                if typed:
                    prompt.fill(prompt.text + typed)
        except IngotError as error:
            prompt.give_back(text)
            self._screen.call_after_refresh(menu.error, str(error))
        else:
            prompt.earlier.reset()

    async def _run(self, command: slash.Command) -> None:
        screen, panels = self._screen, self._screen.panels
        match command:
            case slash.Act(action=action):
                await screen.run_action(action)
            case slash.Chats(query=query):
                panels.chats(query)
            case slash.Model(name=""):
                panels.models()
            case slash.Model(name=name):
                screen.load(name)
            case slash.System(text=None):
                panels.system()
            case slash.System(text=system):
                screen.session.conversation.update(system=system or None)
                screen.say("System message set." if system else "No system message.")
                screen.chat_changed()
            case slash.Set(name=""):
                panels.sampling()
            case slash.Set():
                self._set(command)
            case slash.Attach(path=""):
                panels.attach()
            case slash.Attach(path=path):
                panels.attach_path(path)
            case slash.Export(path=path):
                panels.export(path)
            case slash.Stop():
                if not screen.interrupt():
                    screen.say("Nothing is being written.")
            case slash.Compare():
                await self._compare()
            case slash.Quit():
                screen.app.exit()
            case _:
                assert_never(command)

    async def _compare(self) -> None:
        app = self._screen.app
        await app.run_action("app.switch_mode('compare')")
        if self._screen.path:
            app.screen.call_after_refresh(app.run_action, "screen.from_chat")

    def _set(self, command: slash.Set) -> None:
        screen, conversation = self._screen, self._screen.session.conversation
        defaults = screen.services.config.sampling
        value = getattr(defaults, command.name) if command.default else command.value
        changed = replace(screen.params(conversation), **{command.name: value})
        conversation.update(sampling=sampling_form.to_mapping(changed, defaults))
        said = sampling_form.summary(changed, defaults)
        screen.say(f"Sampling: {said}" if said else "Sampling is as the settings say.")
        screen.chat_changed()
