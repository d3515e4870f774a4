"""Forms of earlier jobs, and those that were saved under a name."""

import json
from pathlib import Path

import pytest

from app.batch.spec import BatchAdapters, BatchSpec
from app.batch.watch import records
from app.batch.watch.follow import TimeLike, time_like
from app.batch.watch.form import (
    JobForm,
    beside,
    forget,
    form_like,
    look,
    presets,
    save,
    summary,
)
from app.batch.watch.process import BatchCommand
from app.batch.watch.records import JobRecord
from app.options import ConstraintOptions, ModelOptions, SamplingOptions
from runtimes.errors import ParameterError
from tests.support import questions, write_rows


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    return tmp_path / "here"


FULL = JobForm(
    input="in.csv", output="out.csv", model="m", field="a.b", limit="7", system="Be brief.",
    temperature="0.5", top_p="0.9", seed="3", n="2", choices="yes | no", max_tokens="9",
    slots="4", row_timeout="2.5", max_time="60",
)  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        FULL,
        JobForm(input="in.csv", output="o", model="m"),
        JobForm(input="in", output="o", model="m", template="t.j2", schema="s.json"),
    ],
)
def test_a_job_gives_the_form_that_started_it(form: JobForm, here: Path) -> None:
    command = BatchCommand(form.spec(), here)
    again = form_like(command, here)
    assert again.spec() == form.spec()
    for name in ("input", "output", "model", "template", "schema", "choices", "temperature"):
        assert getattr(again, name) == getattr(form, name)
    assert not beside(again)
    # From another folder its files are the same ones.
    other = form_like(command, here / "deeper")
    assert other.input == str(here / form.input)


def test_what_has_no_field_stays(here: Path) -> None:
    spec = BatchSpec(
        "in.txt", "out.jsonl", "m", system="two\nlines", force=True, reproducible=True,
        sampling=SamplingOptions(top_k=5, max_tokens=8),
        constraints=ConstraintOptions(choice=["a|b", "c"]), options=ModelOptions(context=512),
        adapters=BatchAdapters(["poet=a.gguf"]),
    )  # fmt: skip
    form = form_like(BatchCommand(spec, here), here)
    assert (form.max_tokens, form.system, form.choices) == ("8", "", "")
    again = form.spec()
    assert again.system == spec.system
    assert again.constraints.choice == ["a|b", "c"]
    assert (again.sampling.top_k, again.options.context, again.reproducible) == (5, 512, True)
    assert not again.force, "what disregards the answers that are there is said each time"
    for part in ("--context=512", "--top-k=5", "--reproducible", "--choice=c"):
        assert part in beside(form)
    assert "--adapter=poet=a.gguf" in beside(form)


def test_saved_ones_are_found_by_their_names_and_forgotten(here: Path) -> None:
    save("short", FULL, here)
    save("plain", JobForm(model="m"), here)
    found = presets(here)
    assert [one.name for one in found] == ["plain", "short"]
    assert (found[1].form.input, found[1].form.output) == ("", "")
    assert found[1].form.max_tokens == "9"
    assert "max tokens 9" in summary(found[1].form)
    with pytest.raises(ParameterError) as caught:
        save("bad", JobForm(model="m", slots="many"), here)
    assert caught.value.field == "slots"
    forget("plain")
    assert [one.name for one in presets(here)] == ["short"]


def test_files_of_earlier_versions_are_read(here: Path, tmp_path: Path) -> None:
    """They have command lines in the place of specs."""
    kept = {"arguments": ["--model=m", "--max-tokens=9"], "folder": str(here)}
    path = tmp_path / "home" / "config" / "batch-presets.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"old": kept}))
    save("new", FULL, here)
    record = JobRecord(here / "out.jsonl", 5.0)
    record.save()
    words, file = "batch in.txt out.jsonl -m m --seed 3".split(), record.folder / "record.json"
    old = json.loads(file.read_text()) | {"command": words, "folder": str(here)}
    file.write_text(json.dumps({name: one for name, one in old.items() if name != "spec"}))
    found = {one.name: one.form for one in presets(here)}
    assert [*found] == ["new", "old", "out.jsonl"]
    assert (found["old"].model, found["old"].max_tokens, found["old"].output) == ("m", "9", "")
    assert (found["out.jsonl"].input, found["out.jsonl"].seed) == ("in.txt", "3")
    (known,) = records.records()
    assert known.command is not None
    assert known.command.text == "ingot batch in.txt out.jsonl --seed=3 --model=m"


def test_a_time_by_the_speeds_of_an_earlier_job(here: Path) -> None:
    found = {"model": "m.gguf", "slots": 4, "prompt_tokens": 1000, "most_answer_tokens": 600}
    assert time_like(found) is None
    end = {"event": "end", "model": "m.gguf", "slots": 4, "prefill_tps": 500.0, "decode_tps": 60.0}
    for name, at, other in (("a", 3.0, {"slots": 8}), ("b", 2.0, {}), ("c", 1.0, {})):
        record = JobRecord(here / name, at)
        record.save()
        write_rows(record.events, ({"event": "begin"}, {**end, **other}))
    assert time_like(found) == TimeLike(2.0 + 10.0, here / "b"), "the latest with as many slots"
    write_rows(JobRecord(here / "b", 0.0).events, [{"event": "begin"}])
    assert time_like(found) == TimeLike(12.0, here / "c")
    assert time_like({**found, "model": "other.gguf"}) is None


def test_in_a_folder_that_was_deleted_whole_paths_still_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    rows, here = write_rows(tmp_path / "rows.jsonl", questions(2)), records.here()
    assert records.absolute(rows) == rows
    assert "input" not in look(JobForm(input=str(rows), model="m"), here)
    told = look(JobForm(input="rows.jsonl", output="out.jsonl", model="m"), here)
    assert "no such file" in told["input"]
    assert presets(here) == []
