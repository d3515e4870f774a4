"""`quantize.measure`: gates, cards and bounds, on files that are good and files that are not."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from app.measured import as_object, print_cards
from app.models.planning import cache_losses
from quantize.cards import card_path, known_cards, load_card
from quantize.errors import SourceError, UsageError
from quantize.manifest import OwnRows
from quantize.measure import (
    MeasureJob,
    bounds_passed,
    compare_templates,
    front,
    manifest_of,
    measure,
)
from quantize.options import SourceOptions
from quantize.progress import Reporter
from quantize.report.write import render_page
from runtimes.errors import ModelError
from runtimes.models.registry import read_model
from tests.quantize.hub.hubs import Notes
from tests.quantize.planted import PLANTED, plant

_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<a>{% endif %}"
)


pytestmark = pytest.mark.usefixtures("home")


def _job(pebble: Path, *paths: Path, **more) -> MeasureJob:
    original = more.pop("original", pebble)
    given = {"limit": 300, "speed": False, **more}
    return MeasureJob([*map(read_model, paths)], SourceOptions(str(original)), **given)


def test_files_of_both_formats_and_what_is_wrong_with_one(
    pebble_short: Path, pebble_built: Path, tmp_path: Path
):
    """The original, a folder, answers the user's rows as a file that is kept."""
    good = pebble_built / "pebble-q8_0.gguf"
    names, bad = ("no BOS", "chat template", "rope base"), good
    for name in names:
        bad = plant(name, bad, tmp_path)
    paths, asked, notes = [good, pebble_built / "onnx-int4", bad], list[Path](), Notes()

    def ask(original: Path, file: Path) -> OwnRows:
        assert (read_model(original).quantization, file in paths) == ("F16", True)
        asked.append(original)
        return OwnRows("rows", 3, 2)

    job = _job(pebble_short, *paths, ask=ask)
    cards = measure(job, notes)
    eight, onnx, wrong = cards
    for name in names:
        assert any(fault.startswith(PLANTED[name][1]) for fault in wrong.faults), wrong.faults
    assert eight.faults == onnx.faults == ()
    assert (eight.weights, onnx.weights) == (56, None)
    assert (eight.templates.lines, eight.templates.differences) == (21, 0)
    assert eight.entry.quality.questions == 16
    assert onnx.entry.rows.same == 2
    assert "2/3" in render_page(manifest_of([onnx]))
    fidelity = eight.entry.fidelity
    assert 0 < fidelity.kl_median < fidelity.kl_mean < fidelity.kl_p99 < fidelity.kl_max < 0.1
    assert front(cards) == sorted([eight, onnx], key=lambda card: card.entry.bytes)
    # Each is kept, and found again where the file lies and by what it holds.
    assert load_card(eight.fingerprint) == eight
    assert known_cards(paths)[good] == eight
    assert measure(job, notes) == cards
    assert sum("was measured before" in note for note in notes.notes) == len(paths)
    assert len(set(asked)) == 1
    assert sum("converting the original" in text for text in notes.stages) == 1


def test_an_original_that_is_a_gguf_file_of_floats(
    pebble_f16: Path, pebble_built: Path, tmp_path: Path
):
    """Behind a file that cannot be compared: a tensor of a type that no weights have."""
    mine, bad = (tmp_path / f"{name}.gguf" for name in ("mine", "integers"))
    mine.write_bytes((pebble_built / "pebble-q4_k_m.gguf").read_bytes())
    data, name = (pebble_built / "pebble-q8_0.gguf").read_bytes(), b"blk.2.attn_k.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8  # its dimensions
    assert data[at : at + 4] == (8).to_bytes(4, "little")
    bad.write_bytes(data[:at] + (24).to_bytes(4, "little") + data[at + 4 :])
    broken, card = measure(_job(pebble_f16, bad, mine), Reporter())
    for begins in ("weights: ", "it does not run: "):
        assert any(fault.startswith(begins) for fault in broken.faults)
    assert (card.faults, card.weights, card.original.name) == ((), 56, "pebble")
    assert card.entry.fidelity.kl_mean < 0.1
    assert manifest_of([broken, card]).model.perplexity is not None
    assert bounds_passed(card, 1.0, 5.0) == []
    (mean,) = bounds_passed(card, 1e-4, None)
    assert mean.startswith("mean KL divergence 0.0")
    assert len(bounds_passed(card, 1e-4, 1e-4)) == 2
    assert len(bounds_passed(broken, 1.0, None)) == 1  # what gives no figure keeps no bound
    for bound in (0, -1, math.nan, math.inf):
        with pytest.raises(UsageError, match="above 0"):
            bounds_passed(card, bound, None)
    # The card of a file that was changed, or one that is damaged, is not shown.
    assert known_cards([mine]) == {mine: card}
    kept = card_path(card.fingerprint)
    text = kept.read_text()
    for damaged in ("{", "[]", text.replace('"kl_mean": ', '"kl_mean": "x"+'), text[:-40]):
        kept.write_text(damaged)
        assert known_cards([mine]) == {}
    kept.write_text(text)
    assert known_cards([mine]) == {mine: card}
    mine.write_bytes(mine.read_bytes() + b"\0")
    assert known_cards([mine]) == {}


def test_types_of_the_cache_behind_long_texts(
    pebble_f16: Path, pebble_built: Path, capsys: pytest.CaptureFixture[str]
):
    paths = [pebble_built / "pebble-q8_0.gguf", pebble_built / "onnx-int4"]
    notes = Notes()
    job = _job(pebble_f16, *paths, kv_types=("q4_0", "q8_0"), context=700, limit=200)
    gguf, onnx = measure(job, notes)
    assert onnx.caches == {}  # its graph has a type of its own
    assert set(gguf.caches) == {"f16", "q4_0", "q8_0"}
    assert gguf.cache_tokens == 700
    full, four, eight = (gguf.caches[kind].kl_mean for kind in ("f16", "q4_0", "q8_0"))
    assert four > 2 * max(full, eight) > 0
    # Only what is not known is measured again.
    job = replace(job, files=job.files[:1], kv_types=("q8_0", "q8_0:q4_0"))
    (again,) = measure(job, notes)
    assert again.caches == gguf.caches | {"q8_0:q4_0": again.caches["q8_0:q4_0"]}
    assert load_card(again.fingerprint) == again
    print_cards([again], [()])
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if "behind 700 tokens" in line)
    assert [line.split()[:2] for line in lines[at + 2 :]][-2:] == [
        ["q8_0:q4_0", "6.5"],
        ["q4_0", "4.5"],
    ]
    assert as_object([again], [()])["files"][0]["caches"]["q4_0"]["kl_mean"] == four
    told = cache_losses(paths[0])
    assert told.startswith("KL by the type of keys and values, behind 700 tokens: ")
    assert told.endswith(f"q4_0 {four:.2g}")
    assert cache_losses(paths[1]) == ""


def test_what_is_no_original_is_refused(pebble: Path, pebble_built: Path, tmp_path: Path):
    file = pebble_built / "pebble-q8_0.gguf"
    with pytest.raises(UsageError, match="quantized already"):
        measure(_job(pebble, file, original=file), Reporter())
    with pytest.raises(UsageError, match="there is no folder"):
        measure(_job(pebble, file, original=tmp_path / "none"), Reporter())
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError):
        measure(_job(pebble, file, original=tmp_path / "empty"), Reporter())
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(ModelError):
        _job(pebble, cut)


@pytest.mark.parametrize(
    "other",
    [
        _TEMPLATE.replace("<a>", "<b>"),
        _TEMPLATE.replace("| tojson", "| length"),
        _TEMPLATE.replace("{{ bos_token }}", ""),
        _TEMPLATE.replace("m.content", "m.content | trim"),
        "{{ raise_exception('no') }}",
        "{% for %}",
        None,
    ],
)
def test_templates_that_differ_are_found(other: str | None):
    _, faults = compare_templates(other, _TEMPLATE)
    assert faults


def test_templates_that_say_the_same_are_none():
    spaced = _TEMPLATE.replace("{{ m.role }}", "{{m['role']}}")
    parity, faults = compare_templates(spaced, _TEMPLATE)
    assert faults == []
    assert parity.lines >= 20
    assert compare_templates("x", None) == (None, [])
