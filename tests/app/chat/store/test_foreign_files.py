"""Files of chats that came from elsewhere, that others hold, or that cannot be read: never replaced
unless they are damaged, never run, and never waited for."""

import contextlib
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.conversation import Conversation
from app.chat.export import as_json, as_markdown
from app.chat.store import database
from app.chat.store.errors import StoreDamagedError, StoreError, StoreFullError
from app.chat.store.records import AnswerFigures, Attachment, State
from app.chat.store.repair import is_whole, repair
from app.chat.store.store import ChatStore

ROOT = Path(__file__).resolve().parents[4]
_FIGURES = AnswerFigures(1, 0, 1, 0.1, 10.0, 20.0, 0.2, "stop")


@pytest.fixture
def chats(path: Path) -> Path:
    """A store with a chat of two messages, and its draft."""
    with ChatStore.open(path) as store:
        chat = store.new_chat(title="plums")
        asked = store.add_message(
            chat.id, None, "question", attachments=(Attachment("a.txt", "text"),)
        )
        answer = store.begin_answer(chat.id, asked.id)
        store.end_answer(
            replace(answer, text="answer", token_ids=(1, 2), state=State.DONE, figures=_FIGURES)
        )
        store.keep_draft(chat.id, "draft")
    return path


def _run(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.create_function("spaced", 1, lambda text: text)
    for statement in statements:
        db.execute(statement)
    db.close()


def _texts(path: Path) -> list[str]:
    with ChatStore.open(path) as store:
        return [m.text for chat in store.chats() for m in store.messages(chat.id)]


def _names(path: Path) -> set[str]:
    return {one.name for one in path.parent.iterdir()}


# What is no damage


@pytest.mark.parametrize("mode", ["EXCLUSIVE", "IMMEDIATE"])
def test_repair_leaves_a_file_that_another_program_holds(
    chats: Path, mode: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(database, "_BUSY_S", 0.1)
    holder = sqlite3.connect(chats, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute(f"BEGIN {mode}")
    holder.execute("UPDATE drafts SET text = 'held'")
    try:
        with pytest.raises(StoreError, match="held by another program") as raised:
            repair(chats)
        assert not isinstance(raised.value, StoreDamagedError)
        assert raised.value.exit_code == 2
    finally:
        holder.execute("COMMIT")
        holder.close()
    assert not [name for name in _names(chats) if "damaged" in name or "repaired" in name]
    assert _texts(chats) == ["question", "answer"]


@pytest.mark.skipif(sys.platform != "linux", reason="uses setuid")
def test_repair_leaves_a_file_without_rights(chats: Path):
    chats.chmod(0)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from app.chat.store.repair import repair\nfrom app.chat.store.errors import StoreError\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setresuid(65534, 65534, 65534)\n"
        "try: repair(Path(sys.argv[1]))\n"
        "except StoreError as error: print(type(error).__name__, error)\n"
    )
    chats.parent.chmod(0o777)
    for folder in chats.parent.parents:  # as deep as pytest's processes make them
        if folder.stat().st_uid == os.geteuid() and "pytest-" in str(folder):
            folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", code, chats], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("StoreError "), done.stderr
    assert "permissions" in done.stdout
    chats.chmod(0o600)
    assert not [name for name in _names(chats) if "damaged" in name]
    assert _texts(chats) == ["question", "answer"]


def test_errors_of_the_disk_are_no_damage(chats: Path, monkeypatch: pytest.MonkeyPatch):
    """The file is held by a lock that has no end; reading it fails as a disk would fail."""
    for code in ("SQLITE_IOERR_READ", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_NOMEM"):

        def fail(path: Path, code: str = code) -> sqlite3.Connection:
            error = sqlite3.OperationalError("it failed")
            error.sqlite_errorcode = getattr(sqlite3, code)
            raise error

        monkeypatch.setattr("app.chat.store.repair.connect", fail)
        with pytest.raises(StoreError) as raised:
            repair(chats)
        assert not isinstance(raised.value, StoreDamagedError), code
        if code != "SQLITE_NOMEM":  # which the user can mend
            assert raised.match("INGOT_HOME")
        assert isinstance(raised.value, StoreFullError) == (code == "SQLITE_IOERR_READ")
    monkeypatch.undo()
    assert _texts(chats) == ["question", "answer"]


def test_a_repair_that_cannot_rename_leaves_all_as_it_was(
    chats: Path, monkeypatch: pytest.MonkeyPatch
):
    _run(chats, "UPDATE chats SET sampling = '{'")
    before, rename = chats.read_bytes(), Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path.name.endswith(".repaired"):
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        with pytest.raises(StoreError, match="permissions"):
            repair(chats)
    assert (chats.read_bytes(), _names(chats)) == (before, {"chats.db"})
    with ChatStore.open(chats) as store, monkeypatch.context() as patch:
        patch.setattr(database, "_BUSY_S", 0.1)
        store.prompts()
        with pytest.raises(StoreError, match="held by another program"):
            repair(chats)
    assert repair(chats).aside is not None


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes in folders there")
@pytest.mark.parametrize("kind", ["fifo", "folder", "link to zero"])
def test_what_is_no_file_is_neither_waited_for_nor_replaced(path: Path, kind: str):
    path.parent.mkdir()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    before = path.stat().st_ino
    for use in (repair, ChatStore.open, is_whole):
        with pytest.raises(StoreError, match="no file"):
            use(path)
    assert path.stat().st_ino == before


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "garbage"])
def test_what_lies_beside_a_file_of_chats(chats: Path, end: str, kind: str, tmp_path: Path):
    beside, victim = chats.with_name(chats.name + end), tmp_path / "victim"
    victim.write_text("precious")
    if kind == "fifo":
        os.mkfifo(beside)
    elif kind == "folder":
        beside.mkdir()
    elif kind == "link":
        beside.symlink_to(victim)
    else:
        beside.write_bytes(b"x" * 5000)
    for use in (_texts, repair):
        if kind in ("fifo", "folder"):
            with pytest.raises(StoreError, match=f"{end} is no file"):
                use(chats)
        else:  # SQLite follows no links, and takes no notice of what is not its own
            with contextlib.suppress(StoreError):
                use(chats)
    assert victim.read_text() == "precious"
    if kind == "garbage":
        assert _texts(chats) == ["question", "answer"]


# What a file from elsewhere would run


_BOMB = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
    " i AS id, 't' AS title, 1.0 AS created, 1.0 AS updated, NULL AS model, NULL AS system,"
    " '{}' AS sampling, NULL AS leaf, NULL AS deleted_at, 0 AS raw FROM n"
)
_HOSTILE: dict[str, tuple[str, ...]] = {
    "a trigger that deletes": (
        "CREATE TRIGGER tidy AFTER INSERT ON messages BEGIN DELETE FROM messages; END",
    ),
    "a trigger of our name": (
        "DROP TRIGGER messages_fts_insert",
        "CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages"
        " BEGIN DELETE FROM messages; END",
    ),
    "a view without end": (
        "ALTER TABLE chats RENAME TO kept",
        f"CREATE VIEW chats AS {_BOMB}",
    ),
    "a view without end, in other letters": (
        "ALTER TABLE chats RENAME TO kept",
        f'CREATE VIEW "CHATS" AS {_BOMB}',
    ),
    "a view of our name": (
        "DROP VIEW message_words",
        "CREATE VIEW message_words AS WITH RECURSIVE n(id, text) AS (SELECT 1, 'x' UNION ALL"
        " SELECT id + 1, 'x' FROM n) SELECT * FROM n",
    ),
    "a column that is computed": (
        "ALTER TABLE chats ADD COLUMN big AS (hex(zeroblob(400000000)))",
    ),
    "an index that computes": (
        "CREATE INDEX slow ON messages (hex(zeroblob(length(text) * 9999)))",
    ),
    "a virtual table": ("CREATE VIRTUAL TABLE more USING fts5 (text)",),
    "a virtual table named as a part of one": ("CREATE VIRTUAL TABLE a_fts_b USING fts5 (text)",),
}


@pytest.mark.parametrize("what", _HOSTILE)
def test_a_part_that_is_not_ours_is_refused_and_left_out_by_repair(chats: Path, what: str):
    _run(chats, "PRAGMA legacy_alter_table = ON", *_HOSTILE[what])
    with pytest.raises(StoreDamagedError, match="did not make"):
        ChatStore.open(chats)
    assert not is_whole(chats)
    done = repair(chats)
    assert done.aside is not None
    with ChatStore.open(chats) as store:
        names = [chat.title for chat in store.chats()]
        assert names in (["plums"], ["Recovered chat 1"])
        chat = store.chats()[0]
        assert [message.text for message in store.messages(chat.id)] == ["question", "answer"]
        store.add_message(chat.id, chat.leaf, "more")
        assert store.search("more")
    assert is_whole(chats)


def test_tables_of_other_programs_beside_ours_stay(chats: Path):
    _run(chats, "CREATE TABLE notes (text)", "INSERT INTO notes VALUES ('x')")
    assert _texts(chats) == ["question", "answer"]
    assert is_whole(chats)


def test_tables_that_are_missing_are_damage(chats: Path):
    _run(chats, "PRAGMA foreign_keys = OFF", "DROP TABLE messages")
    with pytest.raises(StoreDamagedError, match="repair"):
        ChatStore.open(chats)
    assert repair(chats).chats == 1


# Values that make no sense


_ODD: dict[str, tuple[str, ...]] = {
    "a ring of two": (
        "PRAGMA foreign_keys = OFF",
        "UPDATE messages SET parent = 2 WHERE id = 1",
    ),
    "its own parent": ("UPDATE messages SET parent = id",),
    "a parent that is not there": (
        "PRAGMA foreign_keys = OFF",
        "UPDATE messages SET parent = 77 WHERE id = 2",
        "UPDATE messages SET id = 99 WHERE id = 2",
    ),
    "times that are text": ("UPDATE chats SET created = 'now', updated = 'never'",),
    "a time without end": ("UPDATE chats SET updated = 9e999",),
    "a title of bytes": ("UPDATE chats SET title = x'00ff'",),
    "sampling nested deeply": (f"UPDATE chats SET sampling = '{'[' * 100_000}{']' * 100_000}'",),
    "a leaf of text": ("UPDATE chats SET leaf = 'x'",),
    "figures of text": (
        "UPDATE messages SET figures = json_set(figures, '$.decode_tps', 'fast')"
        " WHERE figures IS NOT NULL",
    ),
    "fewer tokens than none": (
        "UPDATE messages SET figures = json_set(figures, '$.completion_tokens', -1)"
        " WHERE figures IS NOT NULL",
    ),
    "figures beyond numbers": (
        f"UPDATE messages SET figures = replace(figures, '\"prompt_tokens\": 1',"
        f" '\"prompt_tokens\": 1{'0' * 400}') WHERE figures IS NOT NULL",
    ),
    "attachments of numbers": ("UPDATE messages SET attachments = '[[1, 2]]'",),
    "token ids of text": ("UPDATE messages SET token_ids = 'abcd'",),
    "a state that there is not": ("UPDATE messages SET state = 'x'",),
    "an owner of text": (
        "UPDATE messages SET state = 'streaming', owner_pid = 'x', owner_born = 'y' WHERE id = 2",
    ),
    "an owner beyond numbers": (
        f"UPDATE messages SET state = 'streaming', owner_pid = {2**62}, owner_born = 1.0"
        " WHERE id = 2",
    ),
}


@pytest.mark.parametrize("what", _ODD)
def test_values_of_other_kinds_are_told_and_repaired(chats: Path, what: str):
    _run(chats, *_ODD[what])
    said = ""
    try:
        _read_all(chats)
    except StoreError as error:
        said = str(error)
    assert not said or "repair" in said
    assert len(said) < 500
    repair(chats)
    _read_all(chats)
    texts = _texts(chats)
    assert texts == ["question", "answer"], what
    assert repair(chats).aside is None


def test_what_is_no_json_takes_nothing_else_with_it(chats: Path):
    _run(
        chats,
        "UPDATE chats SET sampling = '{', system = 'terse'",
        "UPDATE messages SET figures = '{', calls = '{'",
    )
    assert repair(chats).aside is not None
    with ChatStore.open(chats) as store:
        (chat,) = store.chats()
        asked, answer = store.messages(chat.id)
        assert (chat.system, asked.attachments) == ("terse", (Attachment("a.txt", "text"),))
        assert answer.token_ids == (1, 2)


def _read_all(path: Path) -> None:
    with ChatStore.open(path) as store:
        for chat in [*store.chats(), *store.deleted()]:
            conversation = Conversation.open(store, chat.id)
            json.loads(as_json(conversation))
            as_markdown(conversation).encode()
            store.draft(chat.id)
            store.search(chat.title)
        store.prompts()


def test_a_value_without_bounds_is_refused(chats: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database, "_MOST_BYTES", 2**20)
    _run(chats, "UPDATE messages SET text = zeroblob(2000000) WHERE id = 1")
    with ChatStore.open(chats) as store, pytest.raises(StoreDamagedError, match="too large"):
        store.messages(1)
    repair(chats)
    assert _texts(chats) == ["answer"]


def test_a_schema_that_is_no_text_is_damage(chats: Path):
    """SQLite quotes it in its message, which Python then cannot read."""
    raw = chats.read_bytes()
    chats.write_bytes(raw.replace(b"CREATE TABLE chats", b"CREATE TABLE \xce\xff(ts"))
    with pytest.raises(StoreDamagedError, match="repair"), ChatStore.open(chats):
        pass
    repair(chats)
    with ChatStore.open(chats) as store:
        assert store.chats() is not None


# A full disk


@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_told_as_such_also_where_nothing_is_written(
    chats: Path, limited: Callable[[int], None]
):
    limited(16)  # no room for the memory that programs share
    for use in (
        lambda: ChatStore.open(chats).search("question"),
        lambda: repair(chats),
        lambda: is_whole(chats),
    ):
        with pytest.raises(StoreFullError, match="full") as raised:
            use()
        assert raised.value.exit_code == 4
    limited(10**9)
    assert _texts(chats) == ["question", "answer"]
