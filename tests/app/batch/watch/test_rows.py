"""A million rows in bounded memory, and the files that tell of them."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

from app.batch.watch.follow import FileTail, FollowedJournal
from app.batch.watch.form import JobForm, look, suggested_output
from app.batch.watch.preview import preview
from app.batch.watch.process import BatchCommand, last_words
from app.batch.watch.rows import Rows, RowState, SpeedAt, SpeedHistory
from tests.app.batch.watch.conftest import command_of
from tests.support import write_rows


def test_rows_change_their_states() -> None:
    rows = Rows()
    rows.grow(6)
    rows.set_running([0, 1])
    rows.finish(0, 10, good=True)
    rows.finish(2, 20, good=False)
    rows.set_running([3])
    rows.set_invalid([5])
    wait, done, failed = RowState.WAITING, RowState.DONE, RowState.FAILED
    states = [done, wait, failed, RowState.RUNNING, wait, RowState.INVALID]
    assert [rows.state(i) for i in range(6)] == states
    assert (rows.live(), list(rows.order("failed"))) == ([3, 2, 0], [2, 5])
    assert (rows.offset(0), rows.offset(1)) == (10, None)
    rows.begin_run(keep_failures=False)
    assert [rows.state(i) for i in (0, 2, 3)] == [RowState.EARLIER, wait, wait]
    rows.close()
    assert rows.counts()["failed"] == 5
    tracemalloc.start()
    rows = Rows()
    rows.grow(1_000_000)
    for index in range(0, 1_000_000, 100):
        rows.finish(index, index, good=True)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 24e6
    assert (rows.counts()["done"], len(rows.live())) == (10_000, 500)


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
    assert points[-1].at == 999
    assert list(points) == sorted(points, key=lambda point: point.at)
    assert {point.prefill for point in points} == {2.0}


def test_other_settings_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.journal.jsonl"
    run = {"ingot": "batch-run", "at": 5.0, "rows": 2, "input_rows": 2, "invalid": 0, "reused": 0}
    row = {"key": "00" * 16, "index": 1, "ok": True, "answer": {"response": "a"}}
    first, second = ({"ingot": "batch-journal", "settings": {"x": x}} for x in (1, 2))
    feed = FollowedJournal(path, Rows())
    for records, done, state in (
        ([first, run, row], 1, RowState.DONE),
        ([run], 0, RowState.EARLIER),
        ([second, run], 0, RowState.WAITING),
    ):
        with path.open("a") as file:
            file.writelines(json.dumps(one, separators=(",", ":")) + "\n" for one in records)
        feed.read()
        assert (feed.done, feed.rows.state(1), len(feed.rows)) == (done, state, 2)


def form(**values: str) -> JobForm:
    return JobForm(**{"input": "in.txt", "output": "out.jsonl", "model": "m", **values})


def test_bad_files_are_told_before_the_start(tmp_path: Path, gguf_file: Path) -> None:
    for name, text in (
        ("in.txt", "What is 1 + 1?\n"),
        ("bad.j2", "{{ x "),
        ("there.jsonl", "kept\n"),
        ("bad.json", '{"type": "nothing"}'),
    ):
        (tmp_path / name).write_text(text)
    good = {"model": str(gguf_file)}
    for field, value, said in (
        ("input", "none.txt", "no such file"),
        ("template", "bad.j2", "bad.j2"),
        ("output", "no/out.jsonl", "no folder"),
        ("output", "in.txt", "overwrite the input"),
        ("output", "there.jsonl", "Forget the output"),
        ("model", "none.gguf", "none.gguf"),
        ("top_p", "2", "top_p"),
        ("n", "1000", "n must be"),
        ("field", "q", "“Field”"),
        ("schema", "none.json", "none.json"),
        ("schema", "bad.json", "schema"),
    ):
        wrong = look(form(**{**good, field: value}), tmp_path)
        assert [*wrong] == [field]
        assert said in wrong[field]
    answers = {"choices": "yes | not at all|", "seed": "7", "n": "2", "top_p": ".9"}
    command = command_of(form(**good, **answers, system="Be brief."), tmp_path)
    asked = command.asked()
    assert (asked.input, asked.output) == (str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"))
    for part in (
        *("--choice=yes", "'--choice=not at all'", "--seed=7", "--n=2", "--top-p=0.9"),
        "'--system=Be brief.'",
    ):
        assert part in command.text


def test_names_of_outputs() -> None:
    for given, name in (
        ("a/prompts.jsonl.gz", "a/prompts.out.jsonl"),
        ("table.csv", "table.out.csv"),
        ("folder/", "folder.out.jsonl"),
        *((begun, "") for begun in (" ", ".", "./", "..", "../", "/")),
    ):
        assert suggested_output(given) == name


def test_the_last_words_of_a_command(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    assert last_words(path) == ""
    framed = "Usage: ingot batch\n╭─ Error ─────╮\n│ No such option: --x │\n╰─────────────╯\n"
    for text, said in (
        ("a note\ningot: first\n  second\n", "first\nsecond"),
        (framed, "No such option: --x"),
    ):
        path.write_text(text)
        assert last_words(path) == said


def test_what_is_shown_of_an_input_is_what_is_asked(tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_text("Translate: {{ text }}")
    write_rows(tmp_path / "in.jsonl", [{"text": "one"}, {"other": "two"}, {"text": "three"}])
    command = BatchCommand(form(input="in.jsonl", template="t.j2").spec(), tmp_path)
    found = preview(command.asked(), rows=2)
    assert (found.format, found.more) == ("jsonl", True)
    assert found.rows[0].prompt == "Translate: one"
    assert "text" in (found.rows[1].error or "")
