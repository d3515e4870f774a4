"""Processes that are killed, and processes that share the store."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.store import rows
from app.chat.store.errors import StoreError
from app.chat.store.records import Message, Role, State
from app.chat.store.store import ChatStore

ROOT = Path(__file__).resolve().parents[4]


class Writer:
    """A running ``writer.py``."""

    def __init__(self, path: Path, answers: int, saves: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.app.chat.store.writer", path, str(answers), str(saves)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.told: list[list[str]] = []

    def read_until(self, *words: str) -> None:
        """Take what it says, up to a line that begins so."""
        while self.told[-1:] == [] or self.told[-1][: len(words)] != list(words):
            line = self.process.stdout.readline()
            assert line, f"it ended after {self.told[-1:]}"
            self.told.append(line.split())

    def kill(self) -> None:
        """SIGKILL; and take what it had said by then."""
        self.process.kill()
        self.told += [line.split() for line in self.process.stdout.read().splitlines()]
        self.process.wait()


@pytest.fixture
def start(path: Path) -> Iterator[Callable[[int, int], Writer]]:
    writers: list[Writer] = []

    def start(answers: int, saves: int) -> Writer:
        writers.append(Writer(path, answers, saves))
        return writers[-1]

    yield start
    for writer in writers:
        if writer.process.poll() is None:
            writer.kill()
        for stream in (writer.process.stdin, writer.process.stdout):
            stream.close()


def _check(messages: list[Message], told: list[list[str]]) -> None:
    """Everything that was told is there, and nothing that cannot be."""
    by_id = {str(message.id): message for message in messages}
    for what, id, *saves in (line for line in told if line[0] != "waiting"):
        message = by_id[id]
        if what == "asked":
            assert message.text.startswith("question")
        elif what == "saved":
            count = int(saves[0])
            assert message.text.startswith("".join(f"word{n} é天 " for n in range(count)))
            assert len(message.token_ids) >= 2 * count
        elif what == "ended":
            assert message.state is State.DONE
    for message in messages:
        words = message.text.split()[::2]
        if message.role is Role.ASSISTANT:
            assert words == [f"word{n}" for n in range(len(words))]
            assert list(message.token_ids[::2]) == list(range(len(words)))
            assert message.figures is None or message.figures.completion_tokens == 2 * len(words)
            assert message.state in (State.DONE, State.LOST)


@pytest.mark.parametrize("moment", ["begun", "middle", "random1"])
def test_what_was_saved_survives_a_kill(
    path: Path, start: Callable[[int, int], Writer], moment: str
):
    writer = start(400, 40)
    writer.read_until("begun")
    if moment == "middle":
        writer.read_until("saved", writer.told[-1][1], "20")
    elif moment.startswith("random"):
        writer.read_until("ended")
        time.sleep(random.Random(moment).uniform(0, 0.1))
    writer.kill()
    with ChatStore.open(path) as store:
        (chat,) = store.chats()
        messages = store.messages(chat.id)
        _check(messages, writer.told)
        assert chat.leaf == messages[-1].id
        lost = [message for message in messages if message.state is State.LOST]
        assert len(lost) <= 1
        for message in lost:
            assert message is messages[-1]
            if message.text:
                assert store.search("word0")[0].message == message.id
                assert message.figures is not None
    with ChatStore.open(path) as store:
        assert store.messages(chat.id) == messages
        with store.reading() as db:
            assert db.execute("SELECT count(*) FROM pieces").fetchone()[0] == 0


def test_one_that_goes_on_or_was_wrongly_taken_for_dead_loses_nothing(path: Path, store: ChatStore):
    chat = store.new_chat()
    answer = store.begin_answer(chat.id, store.add_message(chat.id, None, "x").id)
    store.end_answer(replace(answer, text="one ", token_ids=(1,), state=State.CUT))
    assert store.resume_answer(answer.id).text == "one "
    store.save_answer(answer.id, "one two ", [1, 2])
    with ChatStore.open(path) as other, other.writing() as db:
        rows.mark_lost(db, [answer.id])  # as if it did not see this process
    lost = store.message(answer.id)
    assert (lost.state, lost.text, lost.token_ids) == (State.LOST, "one two ", (1, 2))
    store.save_answer(answer.id, "one two three ", [1, 2, 3])
    again = store.message(answer.id)
    assert (again.state, again.text) == (State.STREAMING, "one two three ")
    store.end_answer(replace(answer, text="one two three four", token_ids=(), state=State.DONE))
    assert store.search("four")[0].message == answer.id
    with pytest.raises(StoreError, match="ended"):
        store.save_answer(answer.id, "more", [4])
