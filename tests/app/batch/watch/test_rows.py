"""A million rows in bounded memory, and the files that tell of them."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from app.batch.spec import BatchSpec, InputOptions
from app.batch.watch.follow import FileTail, FollowedJournal
from app.batch.watch.form import JobForm, look, suggested_output
from app.batch.watch.preview import preview
from app.batch.watch.process import BatchCommand, command_from, last_words
from app.batch.watch.rows import Rows, RowState, SpeedAt, SpeedHistory
from runtimes.errors import ParameterError
from tests.app.batch.watch.conftest import command_of


def test_rows_change_their_states() -> None:
    rows = Rows()
    rows.grow(6)
    rows.set_running([0, 1])
    rows.finish(0, 10, good=True)
    rows.finish(2, 20, good=False)
    rows.set_running([3])
    rows.set_invalid([5])
    states = [rows.state(i) for i in range(6)]
    wait, done, failed = RowState.WAITING, RowState.DONE, RowState.FAILED
    assert states == [done, wait, failed, RowState.RUNNING, wait, RowState.INVALID]
    assert rows.live() == [3, 2, 0]
    assert list(rows.order("failed")) == [2, 5]
    assert rows.offset(0) == 10
    assert rows.offset(1) is None
    rows.begin_run(keep_failures=False)
    assert [rows.state(i) for i in (0, 2, 3)] == [RowState.EARLIER, wait, wait]
    rows.close()
    assert rows.counts()["failed"] == 5


def test_a_million_rows_take_little_memory() -> None:
    tracemalloc.start()
    rows = Rows()
    rows.grow(1_000_000)
    for index in range(0, 1_000_000, 100):
        rows.finish(index, index, good=True)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 24e6
    assert rows.counts()["done"] == 10_000
    assert len(rows.live()) == 500


def test_a_file_is_read_on_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "grows"
    tail = FileTail(path)
    assert tail.read() == (False, [])
    path.write_bytes(b"one\ntwo\nthr")
    assert tail.read() == (False, [(0, b"one\n"), (4, b"two\n")])
    with path.open("ab") as file:
        file.write(b"ee\n" + b"x" * 100 + b"\n")
    assert tail.read(most=6) == (False, [(8, b"three\n")])
    assert tail.size - tail.offset == 101
    assert tail.read(most=6) == (False, [(14, b"x" * 100 + b"\n")])
    path.write_bytes(b"new\n")
    assert tail.read() == (True, [(0, b"new\n")])
    long = FileTail(path, last=6)
    path.write_bytes(b"first\nsecond\nlast\n")
    assert long.read() == (False, [(13, b"last\n")])


def test_speeds_of_any_time_fit() -> None:
    history = SpeedHistory(most=8)
    for at in range(1000):
        history.add(SpeedAt(at, 2.0, float(at)))
    points = history.points()
    assert len(points) <= 9
    assert [p.at for p in points] == sorted(p.at for p in points)
    assert points[-1].at == 999
    assert all(point.prefill == 2.0 for point in points)


def test_other_settings_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.journal.jsonl"

    def line(**record: object) -> str:
        return json.dumps(record, separators=(",", ":")) + "\n"

    run = {"ingot": "batch-run", "at": 5.0, "rows": 2, "input_rows": 2, "invalid": 0, "reused": 0}
    row = {"key": "00" * 16, "index": 1, "ok": True, "answer": {"response": "a"}}
    path.write_text(line(ingot="batch-journal", settings={"x": 1}) + line(**run) + line(**row))
    feed = FollowedJournal(path, Rows())
    feed.read()
    assert (feed.done, feed.rows.state(1)) == (1, RowState.DONE)
    with path.open("a") as file:
        file.write(line(**run))
    feed.read()
    assert (feed.done, feed.rows.state(1)) == (0, RowState.EARLIER)
    with path.open("a") as file:
        file.write(line(ingot="batch-journal", settings={"x": 2}) + line(**run))
    feed.read()
    assert (len(feed.rows), feed.rows.state(1)) == (2, RowState.WAITING)


def form(**values: str) -> JobForm:
    return JobForm(**{"input": "in.txt", "output": "out.jsonl", "model": "m", **values})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"input": " "}, "input"),
        ({"output": ""}, "output"),
        ({"model": ""}, "model"),
        ({"input": "-"}, "input"),
        ({"field": "a", "template": "b"}, "template"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": "0"}, "max_tokens"),
        ({"temperature": "-1"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"slots": "1.5"}, "slots"),
        ({"slots": "257"}, "slots"),
        ({"seed": "-1"}, "seed"),
        ({"n": "0"}, "n"),
        ({"top_p": "much"}, "top_p"),
        ({"choices": "yes|no", "schema": "s.json"}, "schema"),
    ],
)
def test_a_form_that_cannot_be_used(values: dict[str, str], field: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError) as caught:
        form(**values).spec()
    assert caught.value.field == field


def test_bad_files_are_told_before_the_start(tmp_path: Path, gguf_file: Path) -> None:
    (tmp_path / "in.txt").write_text("What is 1 + 1?\n")
    (tmp_path / "bad.j2").write_text("{{ x ")
    (tmp_path / "there.jsonl").write_text("kept\n")
    (tmp_path / "bad.json").write_text('{"type": "nothing"}')
    good = {"model": str(gguf_file)}
    for values, field, said in (
        ({"input": "none.txt", **good}, "input", "no such file"),
        ({"template": "bad.j2", **good}, "template", "bad.j2"),
        ({"output": "no/out.jsonl", **good}, "output", "no folder"),
        ({"output": "in.txt", **good}, "output", "overwrite the input"),
        ({"output": "there.jsonl", **good}, "output", "Forget the output"),
        ({"model": "none.gguf"}, "model", "none.gguf"),
        ({"top_p": "2", **good}, "top_p", "top_p"),
        ({"n": "1000", **good}, "n", "n must be"),
        ({"field": "q", **good}, "field", "“Field”"),
        ({"schema": "none.json", **good}, "schema", "none.json"),
        ({"schema": "bad.json", **good}, "schema", "schema"),
    ):
        wrong = look(form(**values), tmp_path)
        assert [*wrong] == [field]
        assert said in wrong[field]
    command = command_of(form(**good, system="Be brief."), tmp_path)
    asked = command.asked()
    assert asked is not None
    assert (asked.input, asked.output) == (str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"))
    assert "'--system=Be brief.'" in command.text
    answers = {"choices": "yes | not at all|", "seed": "7", "n": "2", "top_p": ".9"}
    text = command_of(form(**good, **answers), tmp_path).text
    for part in ("--choice=yes", "'--choice=not at all'", "--seed=7", "--n=2", "--top-p=0.9"):
        assert part in text


def test_what_is_shown_of_an_input_is_what_is_asked(tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_text("Translate: {{ text }}")
    rows = [{"text": "one"}, {"other": "two"}, {"text": "three"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = BatchCommand(form(input="in.jsonl", template="t.j2").spec(), tmp_path)
    asked = command.asked()
    assert asked is not None
    found = preview(asked, rows=2)
    assert (found.format, found.more) == ("jsonl", True)
    assert found.rows[0].prompt == "Translate: one"
    assert found.rows[1].error is not None
    assert "text" in found.rows[1].error


def test_names_of_outputs() -> None:
    assert suggested_output("a/prompts.jsonl.gz") == "a/prompts.out.jsonl"
    assert suggested_output("table.csv") == "table.out.csv"
    assert suggested_output("folder/") == "folder.out.jsonl"
    for begun in (" ", ".", "./", "..", "../", "/"):
        assert suggested_output(begun) == ""


def test_commands_are_understood_as_the_command_does() -> None:
    words = ("batch", "in", "out", "-m", "M", "--fresh", "--json", "--field=a.b", "--limit", "3")
    command = command_from({"command": [*words], "folder": "/folder"})
    assert command is not None
    asked = command.asked()
    rows = InputOptions(field="a.b", limit=3)
    assert asked == BatchSpec("/folder/in", "/folder/out", "M", fresh=True, rows=rows)
    assert "--fresh" not in command.again().arguments
    assert command.text == "ingot batch in out --field=a.b --limit=3 --model=M --fresh"
    for other in (
        *(("run", "M"), ("batch", "status", "out"), ("batch", "in", "-"), ("batch", "--x")),
        ("batch", "in", "-", "-m", "m"),
    ):
        assert command_from({"command": [*other], "folder": "/folder"}) is None


def test_the_last_words_of_a_command(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    assert last_words(path) == ""
    path.write_text("a note\ningot: first\n  second\n")
    assert last_words(path) == "first\nsecond"
    path.write_text(
        "Usage: ingot batch\n╭─ Error ─────╮\n│ No such option: --x │\n╰─────────────╯\n"
    )
    assert last_words(path) == "No such option: --x"
