from __future__ import annotations

import dataclasses
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from quantize.manifest import (
    Fidelity,
    FileEntry,
    Manifest,
    ModelInfo,
    Perplexity,
    Quality,
    Source,
    Speed,
    TokenParity,
)
from quantize.report import build_table, write_report
from quantize.report.card import render as render_card
from quantize.report.chart import make_chart
from quantize.report.facts import pareto_front, recommended, sentence
from quantize.report.page import render
from quantize.report.svg import label_places
from quantize.report.write import FILES


def _entry(recipe: str, megabytes: float, kl: float, one: float, many: float) -> FileEntry:
    onnx = recipe.startswith("onnx")
    path = recipe if onnx else f"m-{recipe}.gguf"
    perplexity = Perplexity(12.3 + kl, 0.2, 4096, "the bundled text", "ab" * 32)
    return FileEntry(
        format="onnx" if onnx else "gguf",
        recipe=recipe,
        bits=4 if "4" in recipe else 8,
        path=path,
        bytes=int(megabytes * 1e6),
        sha256={path: "5" * 64},
        source=Source("org/m", "abc"),
        tools={"torch": "2.13.0"},
        token_parity=TokenParity(500, 0),
        quality=Quality(0.97, 357),
        fidelity=Fidelity(perplexity, kl, kl / 20, kl * 12, 0.968),
        speed=Speed(250, one, many, 500, 0.4, 900_000_000),
    )


FILES_BUILT = (
    _entry("q8_0", 531, 0.0004, 30, 232),
    _entry("q4_k_m", 340, 0.02, 35, 139),
    _entry("q4_0", 350, 0.05, 40, 264),
    _entry("onnx-int4", 341, 0.015, 60, 400),
    _entry("onnx-int8", 560, 0.0005, 30, 187),
)
MODEL = ModelInfo("org/m", "LlamaForCausalLM", 494_000_000, Quality(0.98, 357), None, 1_057_100_000)
MANIFEST = Manifest(MODEL, FILES_BUILT)
BARE = dataclasses.replace(
    MANIFEST,
    files=tuple(
        dataclasses.replace(e, fidelity=None, speed=None, quality=None) for e in FILES_BUILT
    ),
)
HOSTILE = "<script>alert(1)</script>|`x`](http://a.b)\n# $x$ & \"'--> www.evil.example"


def test_the_front_and_the_choice():
    names = [entry.recipe for entry in pareto_front(FILES_BUILT)]
    assert names == ["q4_k_m", "onnx-int4", "q8_0"]
    best = recommended(FILES_BUILT)
    assert best is not None
    assert best.recipe == "onnx-int4"
    assert sentence(MANIFEST, best) == (
        "4-bit ONNX (onnx-int4): 3.1x smaller than the original, 2.0x faster here than onnx-int8,"
        " 96.8% same top token, 97.0% of the graded questions right"
    )
    assert recommended(BARE.files) is None


def test_odd_figures():
    fidelity = FILES_BUILT[0].fidelity
    assert fidelity is not None
    for kl in (float("nan"), 0.0, -1e-9, float("inf")):
        odd = dataclasses.replace(
            FILES_BUILT[0],
            fidelity=dataclasses.replace(fidelity, kl_mean=kl),
            speed=Speed(0, 0, 0),
        )
        for files in ((odd,), (odd, FILES_BUILT[1])):
            manifest = dataclasses.replace(MANIFEST, files=files)
            ElementTree.fromstring(_body(render(manifest)))
            assert render_card(manifest)


@pytest.mark.parametrize(
    "manifest",
    [MANIFEST, BARE, Manifest(MODEL, FILES_BUILT[:1]), Manifest(MODEL)],
    ids=["all", "no measurements", "one file", "no file"],
)
def test_all_three_forms(manifest: Manifest, tmp_path: Path):
    write_report(tmp_path, manifest)
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    root = ElementTree.fromstring(_body(page))
    assert (root.find(".//svg") is not None) == (make_chart(manifest.files) is not None)
    assert len(root.findall(".//tbody/tr")) == (len(manifest.files) + 1 if manifest.files else 0)
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|https?:|@import", page)
    picture = (tmp_path / "report.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(picture[16:20], "big") == 1350
    write_report(tmp_path, manifest)
    assert (tmp_path / "report.png").read_bytes() == picture
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for entry in manifest.files:
        assert f"    {'5' * 64}  {entry.path}" in card.splitlines()
        assert entry.recipe in page


def test_every_figure_is_in_the_page_and_the_card():
    page, card = render(MANIFEST), render_card(MANIFEST)
    for text in ("340", "500/500", "97.0%", "12.32 ± 0.2", "0.02 ± 0.001", "0.24", "96.80%"):
        assert text in page
        assert text in card
    assert 'base_model: "org/m"' in card.splitlines()


def test_text_from_a_manifest_is_text(tmp_path: Path):
    entry = dataclasses.replace(
        FILES_BUILT[0],
        recipe=HOSTILE,
        path=HOSTILE,
        notes=(HOSTILE,),
        tools={HOSTILE: HOSTILE},
        sha256={HOSTILE: HOSTILE},
        source=Source(HOSTILE, "x"),
    )
    model = dataclasses.replace(MODEL, name=HOSTILE, architecture=HOSTILE)
    manifest = Manifest(model, (entry, FILES_BUILT[1]))
    write_report(tmp_path, manifest)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    seen = _Tags()
    seen.feed(page)
    assert "script" not in seen.tags
    assert not any(name.startswith("on") for name in seen.attributes)
    assert ElementTree.fromstring(_body(page)).find(".//h1") is not None
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<|(?<!\\)\]\(|^# \$|[^\\]`x|http:/|[^\\]www\.", card, re.M)
    front = card.split("---\n")[1]
    assert all(re.match(r"(- )?[\w-]+(: |:$|$)", line) for line in front.splitlines())
    rows = [line for line in card.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    text = _printed(manifest, 80, (HOSTILE, "q4_k_m"))
    assert "<script>" in text.replace("\n", "")


def test_a_failed_report_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_report(tmp_path, MANIFEST)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_manifest: Manifest, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quantize.report.picture.draw_picture", full)
    with pytest.raises(OSError, match="No space"):
        write_report(tmp_path, BARE)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_matplotlib_is_imported_for_the_picture_only():
    script = "import sys, quantize.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.parametrize("width", [80, 108, 140, 160])
def test_the_table_fits(width: int):
    text = _printed(MANIFEST, width, tuple(entry.recipe for entry in FILES_BUILT))
    assert max(map(len, text.splitlines())) <= width
    for entry in FILES_BUILT:
        assert re.search(rf"│ {re.escape(entry.recipe)} +│", text)
    assert ("m-q8_0.gguf" in text) == (width >= 140)
    assert ("500/500" in text) == (width >= 108)
    for figure in ("0.0004", "96.8%", "97.0%", "531"):
        assert figure in text
    bare = _printed(BARE, width, ("q8_0",))
    assert "KL" not in bare
    assert "q4_k_m" not in bare


def test_labels_lie_on_nothing():
    recipes = "q8_0 q6_k q5_k_m q4_k_m q4_0 iq4_xs onnx-int8 onnx-int4 onnx-int4-rtn".split()
    sizes = (531, 420, 390, 340, 330, 310, 560, 350, 330)
    divergences = (0.0004, 0.002, 0.007, 0.02, 0.05, 0.03, 0.0003, 0.015, 0.06)
    entries = [_entry(r, s, d, 30, 90) for r, s, d in zip(recipes, sizes, divergences, strict=True)]
    chart = make_chart(entries)
    assert chart is not None
    boxes = []
    for point, (x, y, anchor) in zip(chart.points, label_places(chart), strict=True):
        wide = 7.5 * len(point.label)
        left = {"start": x, "end": x - wide, "middle": x - wide / 2}[anchor]
        boxes.append((left, y - 11, left + wide, y))
    for i, (a, b, c, d) in enumerate(boxes):
        assert a > 60
        assert c <= 560
        for e, f, g, h in boxes[:i]:
            assert min(c, g) <= max(a, e) or min(d, h) <= max(b, f)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def _body(page: str) -> str:
    """The page's body, which is well-formed XML too."""
    return page[page.index("<main>") : page.index("</main>") + len("</main>")]


def _printed(manifest: Manifest, width: int, recipes: tuple[str, ...]) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(build_table(manifest, recipes, width))
    return stream.getvalue()


def test_front_matter_strings_are_json():
    line = next(x for x in render_card(MANIFEST).splitlines() if x.startswith("base_model:"))
    assert json.loads(line.partition(": ")[2]) == "org/m"
