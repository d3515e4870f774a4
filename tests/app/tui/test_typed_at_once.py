"""What a slow line, a program or dictation writes to the terminal at once is what was typed."""

import random
import string
from functools import partial
from pathlib import Path

from app.chat.store.records import Role, State
from app.chat.store.store import ChatStore
from tests.app.tui.terminal import Terminal
from tests.support import wait_until

ROUNDS, BURSTS = 3, 10  # of a chat each, so that no chat is longer than the model's context
ENTER, NEW_LINE = "\r", "\n"  # as a terminal sends them: ctrl+j is a line feed
PASTE = "\x1b[200~{}\x1b[201~"
NEW_CHAT, PUT_AWAY = "\x0e", "\x03"


def bursts(draw: random.Random) -> list[list[str]]:
    """Each a list of words, pastes and keys that are written together."""
    made = []
    for _ in range(BURSTS):
        burst = []
        for kind in draw.choices(("word", "enter", "line", "paste"), (6, 2, 2, 1), k=4):
            word = "".join(draw.choices(string.ascii_letters + " é.,", k=draw.randint(1, 5)))
            match kind:
                case "word":
                    burst.append(word)
                case "enter":
                    burst.append(ENTER)
                case "line":
                    burst.append(NEW_LINE)
                case _:
                    burst.append(PASTE.format(f"{word}\n{word[::-1]}"))
        made.append(burst)
    return made


def typed(made: list[list[str]]) -> tuple[list[str], str]:
    """The messages that were sent, and what is left in the prompt."""
    sent, text = [], ""
    for item in (item for burst in made for item in burst):
        if item == ENTER:
            if text.strip():
                sent.append(text.strip())
                text = ""
        else:
            text += item.removeprefix(PASTE[:6]).removesuffix(PASTE[-6:])
    return sent, text


def is_there(store: ChatStore, sent: list[str], left: str) -> bool:
    """Whether the last chat has these messages, answered, and this draft."""
    chats = store.chats()
    messages = store.messages(chats[0].id) if chats else []
    draft = store.draft(chats[0].id) if chats else ""
    said = [one.text.strip() for one in messages if one.role is Role.USER]
    ended = all(one.state is not State.STREAMING for one in messages)
    return ended and (said, draft.strip()) == (sent, left.strip())


async def test_thirty_bursts(home: Path, gguf_file: Path):
    settings = home / "config" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("[sampling]\nmax_tokens = 2\n", "utf-8")
    app = Terminal("chat", gguf_file, env={"INGOT_HOME": str(home)})
    draw = random.Random(14)
    try:
        app.wait("q8_0")
        with ChatStore.open() as store:
            for _ in range(ROUNDS):
                made = bursts(draw)
                sent, left = typed(made)
                if not sent and not left.strip():
                    continue
                for burst in made:
                    app.press("".join(burst))
                await wait_until(partial(is_there, store, sent, left))
                app.press(PUT_AWAY if left.strip() else "")
                app.press(NEW_CHAT)
    finally:
        app.close()
