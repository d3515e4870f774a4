from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from quantize.manifest import (
    Fidelity,
    FileEntry,
    FileSpeeds,
    Manifest,
    ModelInfo,
    ModelOrigin,
    Perplexity,
    Quality,
    TokenParity,
)
from quantize.report.facts import (
    alternatives,
    comparable_parts,
    make_chart,
    outdone,
    pareto_front,
    recommended,
    sentence,
)
from quantize.report.picture import draw_chart
from quantize.report.table import build_table
from quantize.report.write import FILES, render_card, render_page, write_report
from tests.quick import no_pictures


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
        source=ModelOrigin("org/m", "abc"),
        tools={"torch": "2.13.0"},
        token_parity=TokenParity(500, 0),
        quality=Quality(0.97, 357),
        fidelity=Fidelity(perplexity, kl, kl / 20, kl * 12, 0.968),
        speed=_speed(one, many),
        bits_per_weight=megabytes * 8 / 494,
        measurement="m" * 64,
    )


def _speed(one: float, many: float, scatter: float = 0.04, others: float = 0.02) -> FileSpeeds:
    figures = {"prefill_tps": 250.0, "decode_tps_1": one, "decode_tps_16": many}
    ranges = {n: (v * (1 - scatter / 2), v * (1 + scatter / 2)) for n, v in figures.items()}
    return FileSpeeds(250, one, many, 500, 0.4, 900_000_000, ranges, others)


FILES_BUILT = (
    _entry("q8_0", 531, 0.0004, 30, 232),
    _entry("q4_k_m", 340, 0.02, 35, 139),
    _entry("q4_0", 350, 0.05, 40, 264),
    _entry("onnx-int4", 341, 0.015, 60, 400),
    _entry("onnx-int8", 560, 0.0005, 30, 187),
)
MODEL = ModelInfo(
    *("org/m", "LlamaForCausalLM", 494_000_000, Quality(0.98, 357), None, 1_057_100_000, "m" * 64)
)
MANIFEST = Manifest(MODEL, FILES_BUILT)
BARE = replace(
    MANIFEST,
    files=tuple(replace(e, fidelity=None, speed=None, quality=None) for e in FILES_BUILT),
)
HOSTILE = "<script>alert(1)</script>|`x`](http://a.b)\n# $x$ & \"'--> www.evil.example"


def test_the_front_and_the_choice():
    names = [entry.recipe for entry in pareto_front(FILES_BUILT)]
    assert names == ["q4_k_m", "onnx-int4", "q8_0"]
    assert sentence(MANIFEST, recommended(FILES_BUILT)) == (
        "onnx-int4 (ONNX, 5.5 bits a weight): 3.1x smaller than the original, 2.0x faster"
        " here than onnx-int8, 96.8% same top token, 97.0% of the graded questions right"
    )
    assert recommended(BARE.files) is None


def test_odd_figures():
    first, second = FILES_BUILT[:2]
    for kl in (float("nan"), 0.0, -1e-9, float("inf")):
        near = replace(first.fidelity, kl_mean=kl)
        odd = replace(first, fidelity=near, speed=FileSpeeds(0, 0, 0))
        for files in ((odd,), (odd, second)):
            manifest = replace(MANIFEST, files=files)
            ElementTree.fromstring(_body(render_page(manifest)))
            assert render_card(manifest)


@pytest.mark.parametrize(
    "manifest",
    [MANIFEST, BARE, Manifest(MODEL)],
    ids=["all", "no measurements", "no file"],
)
def test_all_three_forms(manifest: Manifest, tmp_path: Path):
    write_report(tmp_path, manifest)
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    root = ElementTree.fromstring(_body(page))
    assert (root.find(".//svg") is not None) == (make_chart(manifest.files) is not None)
    assert len(root.findall(".//tbody/tr")) == (len(manifest.files) + 1 if manifest.files else 0)
    assert not re.search(r"<script|<link|<img|src=|href=.(?!#)|url\((?!#)|https?:|@import", page)
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
    page, card = render_page(MANIFEST), render_card(MANIFEST)
    figures = "340|5.5|35 (34 to 36)|500/500|97.0%|12.32 ± 0.2|0.02 ± 0.001|0.24|96.80%".split("|")
    assert [text for text in figures if text not in page or text not in card] == []
    line = next(x for x in card.splitlines() if x.startswith("base_model:"))
    assert json.loads(line.partition(": ")[2]) == "org/m"


def test_text_from_a_manifest_is_text(tmp_path: Path):
    entry = replace(
        FILES_BUILT[0],
        recipe=HOSTILE,
        path=HOSTILE,
        notes=(HOSTILE,),
        tools={HOSTILE: HOSTILE},
        sha256={HOSTILE: HOSTILE},
        source=ModelOrigin(HOSTILE, "x"),
    )
    model = replace(MODEL, name=HOSTILE, architecture=HOSTILE)
    manifest = Manifest(model, (entry, FILES_BUILT[1]))
    write_report(tmp_path, manifest)  # the picture takes it, too
    page, card = render_page(manifest), render_card(manifest)
    seen = _Tags()
    seen.feed(page)
    assert "script" not in seen.tags
    assert not any(name.startswith("on") for name in seen.attributes)
    assert ElementTree.fromstring(_body(page)).find(".//h1") is not None
    assert not re.search(r"(?<!\\)<|(?<!\\)\]\(|^# \$|[^\\]`x|http:/|[^\\]www\.", card, re.M)
    front = card.split("---\n")[1]
    assert all(re.match(r"(- )?[\w-]+(: |:$|$)", line) for line in front.splitlines())
    rows = [line for line in card.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    text = _printed(manifest, 80, (HOSTILE, "q4_k_m"))
    assert "<script>" in text.replace("\n", "")


def test_a_failed_report_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with no_pictures():
        write_report(tmp_path, MANIFEST)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_manifest: Manifest, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quantize.report.write.draw_picture", full)
    with pytest.raises(OSError, match="No space"):
        write_report(tmp_path, BARE)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_table_fits():
    for width in (80, 114, 140, 160):
        text = _printed(MANIFEST, width, tuple(entry.recipe for entry in FILES_BUILT))
        assert max(map(len, text.splitlines())) <= width
        for entry in FILES_BUILT:
            assert re.search(rf"│ {re.escape(entry.recipe)} +│", text)
        assert ("m-q8_0.gguf" in text) == (width >= 140)
        assert ("500/500" in text) == (width >= 114)
        assert all(figure in text for figure in ("0.0004", "96.8%", "97.0%", "531"))
    bare = _printed(BARE, 80, ("q8_0",))
    assert not {"KL", "q4_k_m"} & set(bare.split())


def test_figures_of_two_measurements_never_meet():
    """Another text, limit, program or machine: shown apart, and compared with nothing."""
    other = Perplexity(14.5, 0.3, 2040, "the bundled text", "ab" * 32, 8)
    files = tuple(
        replace(e, measurement="n" * 64, fidelity=_measured_on(e, other))
        if e.recipe in ("q4_0", "onnx-int4")
        else e
        for e in FILES_BUILT
    )
    manifest = replace(MANIFEST, files=files)
    main, apart = comparable_parts(manifest)
    assert [e.recipe for e in main.files] == ["q8_0", "q4_k_m", "onnx-int8"]
    assert [e.recipe for e in apart.files] == ["q4_0", "onnx-int4"]
    assert main.model.quality == MODEL.quality
    assert apart.model.quality is None
    page, card = render_page(manifest), render_card(manifest).replace("\\", "")
    for text, begin, end in ((page, "<table>", "</table>"), (card, "| file |", "\n\n")):
        _, *tables = (piece.partition(end)[0] for piece in text.split(begin))
        assert text.count("the same 4,096 token ids") == 1
        assert text.count("the same 2,040 token ids in 8 windows") == 1
        assert ["98.0%" in table for table in tables] == [True, False]
        for recipe in ("q8_0", "q4_k_m", "onnx-int8"):
            assert [recipe in table for table in tables] == [True, False]
        assert "must not be compared" in text
    chart = page[page.index("<svg") : page.index("</svg>")]
    assert not {"onnx-int4", "q4_0"} & set(re.findall(r"[\w-]+", chart))
    assert "onnx-int4" not in sentence(main, recommended(main.files))
    assert "onnx-int4" not in _printed(main, 160, tuple(e.recipe for e in files))
    # Older manifests are told apart by their texts.
    files = tuple(replace(e, measurement="") for e in FILES_BUILT)
    assert len(comparable_parts(replace(MANIFEST, files=files))) == 1
    mixed = (replace(files[0], fidelity=_measured_on(files[0], other)), *files[1:])
    assert len(comparable_parts(replace(MANIFEST, files=mixed))) == 2


@pytest.mark.parametrize("busy", [_speed(60, 400, scatter=0.5), _speed(60, 400, others=0.4)])
def test_no_ratio_comes_from_a_busy_machine(busy: FileSpeeds):
    files = (*FILES_BUILT[:3], replace(FILES_BUILT[3], speed=busy), FILES_BUILT[4])
    manifest = replace(MANIFEST, files=files)
    text = sentence(manifest, files[3])
    assert "faster" not in text
    assert "60 tokens a second here (the machine was busy)" in text
    assert not [label for label, _ in alternatives(manifest) if "fastest" in label]
    chart = make_chart(files)
    assert {p.label for p in chart.points if p.speed is None} == {"onnx-int4"}
    for form in (render_page(manifest), render_card(manifest)):
        assert "Not compared with other speeds: onnx-int4 (laps scattered by" in form
        assert "60 (" in form
    assert "60*" in _printed(manifest, 160, ("onnx-int4",))
    # Without a steady comparison, size and closeness decide.
    slow = tuple(replace(e, speed=busy) for e in files)
    bare = tuple(replace(e, speed=None) for e in files)
    assert recommended(slow) == replace(recommended(bare), speed=busy)  # type: ignore[type-var]


def test_a_file_that_is_larger_and_worse_is_named():
    files = (*FILES_BUILT[:2], _entry("onnx-int4", 341, 0.17, 30, 90))
    manifest = replace(MANIFEST, files=files)
    assert outdone(manifest) == ["onnx-int4 is larger than q4_k_m and further from the original."]
    assert recommended(files).recipe != "onnx-int4"
    assert "onnx-int4 is larger than q4" in render_page(manifest)


def test_labels_lie_on_nothing():
    recipes = "q8_0 q6_k q5_k_m q4_k_m q4_0 iq4_xs onnx-int8 onnx-int4 onnx-int4-rtn".split()
    sizes = (531, 420, 390, 340, 330, 310, 560, 350, 330)
    divergences = (0.0004, 0.002, 0.007, 0.02, 0.05, 0.03, 0.0003, 0.015, 0.06)
    entries = [_entry(r, s, d, 30, 90) for r, s, d in zip(recipes, sizes, divergences, strict=True)]
    chart = make_chart(entries)
    figure = Figure(figsize=(7.6, 5.4), layout="constrained")
    draw_chart(figure, chart)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == [p.label for p in chart.points]
    boxes = [text.get_window_extent() for text in axes.texts]
    points = [line.get_window_extent() for line in axes.lines if line.get_gid()]
    frame = axes.get_window_extent()
    for i, box in enumerate(boxes):
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1
        assert not box.count_overlaps([*boxes[:i], *points])


def _measured_on(entry: FileEntry, text: Perplexity) -> Fidelity | None:
    return entry.fidelity and replace(entry.fidelity, perplexity=text)


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
