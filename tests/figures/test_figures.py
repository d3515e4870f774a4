"""`make figures` on Pebble: what it measures, what it keeps, and what it writes into documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.figures.__main__ import DATA, DOCS, ROOT, blocks, load, main
from tests.figures.sections import SECTIONS
from tests.figures.tables import Peer, Table, Value, fill, markers, slower, unequal

DOC = """# Title
<!-- figures: slower -->
old text of peers
<!-- /figures -->
by hand
<!-- figures: depths -->
old figures
<!-- /figures -->
<!-- figures: peers -->
old sweep
<!-- /figures -->
"""


def figures(folder: Path, *words: object) -> int:
    command = ["figures", "--quick", "--docs", folder, "--data", folder / "runs.jsonl", *words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [str(word) for word in command])
        return main()


def test_a_run_is_kept_and_its_json_alone_is_shown(tmp_path, pebble_built, capsys) -> None:
    readme, kept = tmp_path / "README.md", tmp_path / "runs.jsonl"
    readme.write_text(DOC, encoding="utf-8")
    words = ("--only", "depths", "--pebble", pebble_built)
    assert figures(tmp_path, *words) == 0
    first, runs = readme.read_text(encoding="utf-8"), kept.read_bytes()
    assert "old figures" not in first
    assert "by hand" in first
    assert "old text of peers" in first
    assert "old sweep" in first
    found = load(kept)
    assert [run.round for run in found] == [1, 2]
    assert f"| {found[0].output[0]['bytes'] / 1e6:,.1f} | 0 | " in first
    # Again: nothing runs, and the text is the same.
    assert figures(tmp_path, *words) == 0
    assert "0 runs" in capsys.readouterr().err
    assert (readme.read_text(encoding="utf-8"), kept.read_bytes()) == (first, runs)
    # Another figure in the JSON is another figure in the text; nothing else decides it.
    lines = [json.loads(line) for line in runs.decode().splitlines()]
    for line in lines:
        line["output"][0]["prefill_tps"] = 123456.0
    kept.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert figures(tmp_path, *words, "--render") == 0
    assert "123,456" in readme.read_text(encoding="utf-8")
    # What fails is told, and its old text stays.
    before = readme.read_text(encoding="utf-8")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text("{}", encoding="utf-8")
    assert figures(tmp_path, "--only", "peers", "--pebble", broken) == 1
    assert "peers: FAILED, the old text stays: exit code " in capsys.readouterr().err
    assert readme.read_text(encoding="utf-8") == before


def test_scatter_decides_what_is_equal() -> None:
    def table(*samples: tuple[float, ...]) -> Table:
        return Table(["work", "tok/s"], [[f"w{i}", Value(s)] for i, s in enumerate(samples)])

    old = {"speed": table((100.0, 104.0, 96.0), (50.0, 51.0, 49.0))}
    assert unequal(old, {"speed": table((103.0, 104.0, 99.0), (50.5, 50.0, 51.0))}) == []
    said = unequal(old, {"speed": table((130.0, 131.0, 129.0), (50.0, 51.0, 49.0))})
    assert len(said) == 1
    assert said[0].startswith("speed, w0: tok/s")
    text = "\n".join(old["speed"].lines())
    assert "| w0 | 100 |" in text
    assert "Scatter: ±6%" in text
    once = "\n".join(table((7.0,)).lines())
    assert "nothing ran twice" in once


def test_what_is_slower_comes_first() -> None:
    ours = Value((50.0, 52.0))
    peers = [
        Peer.of("a", "one", ours, Value((100.0, 104.0))),
        Peer.of("b", "two", ours, Value((40.0, 41.0))),
        Peer.of("c", "three", ours, Value((49.0, 54.0))),
    ]
    lines = list(slower(peers))
    assert lines[0].startswith("In 2 of 3")
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| a", "| c"]
    assert "perhaps not" in lines[-1]
    assert "perhaps not" not in lines[-2]


def test_the_documents_show_what_was_kept(tmp_path) -> None:
    """No table of these documents is by hand: each block has a section, and the text that follows
    from the JSON."""
    known = {*SECTIONS, "slower", "machine"}
    runs = load(ROOT / DATA)
    for name in (name for name in DOCS if (ROOT / name).is_file()):  # a source archive has one
        text = (ROOT / name).read_text(encoding="utf-8")
        assert set(markers(text)) <= known
        copy = tmp_path / Path(name).name
        copy.write_text(text, encoding="utf-8")
        assert fill([copy], blocks(runs, SECTIONS)) == []
