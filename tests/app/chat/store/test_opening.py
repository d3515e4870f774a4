"""Opening what is there: older and newer versions, other programs' files, damage, a full disk."""

import hashlib
import os
import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.chat.store import database
from app.chat.store.database import Database
from app.chat.store.errors import StoreDamagedError, StoreError
from app.chat.store.records import Attachment, State
from app.chat.store.repair import is_whole, repair
from app.chat.store.schema import MIGRATIONS
from app.chat.store.store import ChatStore
from tests.app.chat.store.long_chats import fill

ROOT = Path(__file__).resolve().parents[4]
VERSION_1 = (Path(__file__).parent / "version1.sql").read_text(encoding="utf-8")


def _version(path: Path) -> int:
    db = sqlite3.connect(path)
    try:
        return int(db.execute("PRAGMA user_version").fetchone()[0])
    finally:
        db.close()


def _make(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    db = sqlite3.connect(path)
    db.executescript(script)
    db.close()


def _schema(path: Path) -> set[tuple[str, str]]:
    db = sqlite3.connect(path)
    try:
        rows = db.execute("SELECT name, coalesce(sql, '') FROM sqlite_master")
        return {(name, " ".join(sql.split()).replace("( ", "(")) for name, sql in rows}
    finally:
        db.close()


def test_version_1_comes_up_to_date_with_all_it_has(path: Path, tmp_path: Path):
    _make(path, VERSION_1)
    with ChatStore.open(path) as store:
        assert _version(path) == len(MIGRATIONS) > 1
        (chat,) = store.chats()
        assert (chat.title, chat.sampling, chat.leaf) == ("Café", {"temperature": 0.5}, 3)
        asked, cut, lost = store.messages(1)
        assert asked.attachments == (Attachment("a.txt", "attached"),)
        assert asked.dropped
        assert (cut.state, cut.token_ids) == (State.CUT, (1, 70_000))
        assert cut.figures.decode_tps == 10.0
        assert (lost.state, lost.text, lost.token_ids) == (State.LOST, "Äpfel, weil", (1, 2))
        assert [hit.message for hit in store.search("apfel")] == [3]
        assert [hit.message for hit in store.search("cafe")] == [None]
        store.restore_chat(4)
        assert [hit.message for hit in store.search("气")] == [4]
        assert store.new_chat().id == 5
    with ChatStore.open(tmp_path / "fresh.db"):
        assert _schema(path) == _schema(tmp_path / "fresh.db")


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    Database(path).close()
    before = _schema(path)
    broken = (*MIGRATIONS, ("CREATE TABLE more (id)", "INSERT INTO nowhere VALUES (1)"))
    monkeypatch.setattr(database, "MIGRATIONS", broken)
    with pytest.raises(StoreError, match="nowhere"):
        Database(path)
    monkeypatch.undo()
    assert _version(path) == len(MIGRATIONS)
    assert _schema(path) == before
    ChatStore.open(path).close()


def test_many_open_a_new_store_at_once(tmp_path: Path):
    failed: list[BaseException] = []

    def work(path: Path) -> None:
        try:
            with ChatStore.open(path) as store:
                store.new_chat()
        except BaseException as error:
            failed.append(error)

    for attempt in range(2):
        path = tmp_path / str(attempt) / "chats.db"
        threads = [threading.Thread(target=work, args=(path,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        with ChatStore.open(path) as store:
            assert len(store.chats()) == 8


def _refused(path: Path) -> StoreError:
    """What opening says; the file must stay as it is."""
    before = hashlib.sha256(path.read_bytes()).digest()
    with pytest.raises(StoreError) as raised:
        ChatStore.open(path)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert str(path) in str(raised.value)
    return raised.value


def test_a_newer_version_is_left_alone(path: Path):
    ChatStore.open(path).close()
    _make(path, "PRAGMA user_version = 99")
    error = _refused(path)
    assert "newer Ingot" in str(error)
    assert "99" in str(error)
    assert error.exit_code == 2
    with pytest.raises(StoreError, match="newer Ingot"):
        repair(path)
    assert [name.name for name in path.parent.iterdir()] == ["chats.db"]


def test_what_is_not_ours_is_left_alone(path: Path):
    _make(path, "CREATE TABLE recipes (name)")
    assert "another program" in str(_refused(path))
    path.write_text("dear diary " * 500)
    error = _refused(path)
    assert isinstance(error, StoreDamagedError)
    assert "ingot chats repair" in str(error)
    done = repair(path)
    assert (done.chats, done.messages) == (0, 0)
    assert done.aside.read_text().startswith("dear diary")
    ChatStore.open(path).close()


@pytest.fixture
def damaged(path: Path) -> Path:
    """A store of three chats with pages of the middle one overwritten."""
    with ChatStore.open(path) as store:
        for seed in range(3):
            fill(store, 60, seed=seed)
        streaming = store.begin_answer(1, None)
        store.save_answer(streaming.id, "streamed", [1])
        with store.reading() as db:
            pages = db.execute(
                "SELECT pageno FROM dbstat WHERE name = 'messages' AND pagetype = 'leaf'"
                " ORDER BY pageno"
            ).fetchall()
    middle = [page for (page,) in pages][len(pages) // 2]
    with path.open("r+b") as stream:
        stream.seek((middle - 1) * 4096)
        stream.write(random.Random(1).randbytes(2 * 4096))
    return path


def test_repair_saves_what_can_be_read(damaged: Path):
    assert not is_whole(damaged)
    before = damaged.read_bytes()
    done = repair(damaged)
    assert done.aside.read_bytes() == before
    assert is_whole(damaged)
    assert 120 < done.messages < 181
    with ChatStore.open(damaged) as store:
        chats = store.chats()
        assert len(chats) == done.chats == 3
        assert sum(chat.count for chat in chats) == done.messages
        assert store.message(181).text == "streamed"
        for chat in chats:
            messages = {message.id: message for message in store.messages(chat.id)}
            assert all(m.parent is None or m.parent in messages for m in messages.values())
            assert chat.leaf in messages
        assert store.search("question 30")
    again = repair(damaged)
    assert (again.aside, again.messages) == (None, done.messages)


def test_bytes_that_make_no_sense_are_told_and_repaired(path: Path):
    """SQLite itself does not notice them."""
    with ChatStore.open(path) as store:
        chat = store.new_chat(title="x")
        for text in ("Q1234567", "two", "three"):
            last = store.add_message(chat.id, None, text)
        with store.writing() as db:
            db.execute("UPDATE messages SET attachments = '[[' WHERE id = 2")
            db.execute("UPDATE chats SET sampling = '{'")
        with pytest.raises(StoreDamagedError, match="repair"):
            store.messages(chat.id)
        call = '[{"id": "a", "name": "b", "arguments": "{}", "state": "done"}]'
        for wrong in (
            "1",
            "[1]",
            '[{"id": "a"}]',
            '{"a": 1}',
            call.replace("done", "x"),
            "[[",
        ):
            with store.writing() as db:
                db.execute("UPDATE messages SET calls = ? WHERE id = 1", (wrong,))
            with pytest.raises(StoreDamagedError, match="repair"):
                store.message(1)
    path.write_bytes(path.read_bytes().replace(b"Q1234567", b"\xff\xfe345678"))
    with ChatStore.open(path) as store:
        with pytest.raises(StoreDamagedError, match="repair"):
            store.message(1)
        assert store.message(3) == last
        with pytest.raises(StoreDamagedError, match="repair"):
            store.chats()
    assert repair(path).aside is not None
    with ChatStore.open(path) as store:
        texts = [message.text for message in store.messages(chat.id)]
        assert texts == ["\ufffd\ufffd345678", "two", "three"]
        assert store.chat(chat.id).leaf == last.id


# A full disk


# A full disk


_FILLS_UP = """
import resource, signal, sys
from pathlib import Path
from app.chat.store.errors import StoreFullError
from app.chat.store.store import ChatStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
store = ChatStore.open(Path(sys.argv[1]))
chat = store.new_chat(title="full")
asked = store.add_message(chat.id, None, "x")
answer = store.begin_answer(chat.id, asked.id)
text = ""
for number in range(100_000):
    try:
        store.save_answer(answer.id, text + "more words " * 100, range(number))
    except StoreFullError as error:
        assert error.exit_code == 4 and "make room" in str(error)
        break
    text += "more words " * 100
try:
    store.add_message(chat.id, None, text)
    print("there was room")
except StoreFullError:
    print(answer.id, len(text))
assert store.message(answer.id).text == text
"""


def test_a_file_that_may_not_grow_takes_nothing_back(path: Path):
    done = subprocess.run(
        [sys.executable, "-c", _FILLS_UP, path], cwd=ROOT, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    id, length = map(int, done.stdout.split())
    assert length > 10_000
    with ChatStore.open(path) as store:  # with room again
        message = store.message(id)
        assert (message.state, len(message.text)) == (State.LOST, length)
        assert [chat.title for chat in store.chats()] == ["full"]
        store.add_message(message.chat, message.id, "y" * 10_000)
    assert is_whole(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(path: Path) -> None:
    with ChatStore.open(path) as store:
        store.new_chat(title="there")
    path.parent.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="INGOT_HOME"):
            ChatStore.open(path)
    finally:
        path.parent.chmod(0o700)
    with ChatStore.open(path) as store:
        assert [chat.title for chat in store.chats()] == ["there"]
