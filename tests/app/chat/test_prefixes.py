"""Long chats whose keys and values outlive the engine that made them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.models.prefixes import SavedPrefixes
from app.options import ModelOptions
from tests.app.chat.conftest import answer

FIRST = "Tell me a story about a fox and a crow, and then another one about a river. " * 4
ROOM = 10**9


@contextmanager
def host(model: Path, prefixes: SavedPrefixes) -> Iterator[EngineHost]:
    found = EngineHost(prefixes=prefixes)
    found.load(str(model), ModelOptions(recipe="q8_0", context=512, threads=1))
    yield found
    found.close()


def cached(message: object) -> int:
    return message.figures.cached_tokens  # type: ignore[attr-defined,no-any-return]


def test_a_chat_that_is_opened_again_is_not_read_anew(
    pebble_built: Path, home: None, conversation: Conversation, tmp_path: Path
):
    prefixes = SavedPrefixes(tmp_path / "prefixes", ROOM, worth_s=0)
    with host(pebble_built, prefixes) as first:
        before = answer(first, conversation, FIRST, max_tokens=16)
    [file] = prefixes.folder.iterdir()
    if os.name == "posix":
        assert file.stat().st_mode & 0o077 == 0
        assert prefixes.folder.stat().st_mode & 0o077 == 0
    with host(pebble_built, SavedPrefixes(prefixes.folder, ROOM)) as second:
        after = answer(second, conversation, "And then?", max_tokens=16)
    # All but the last token or two of the answer, which were sampled and never read.
    have = before.figures.prompt_tokens + before.figures.completion_tokens
    assert have - 2 <= cached(after) <= have
    none = SavedPrefixes(prefixes.folder, 0)  # as when `chat.saved_mb` is set to 0 later
    with host(pebble_built, none) as anew:
        other = Conversation.open(conversation.store, conversation.chat.id)
        assert cached(answer(anew, other, "And then?", max_tokens=16)) == 0
    none.prune()  # as the app does when it starts
    assert not list(prefixes.folder.iterdir())
