"""Comparisons of Pebble's real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.compare import run as running
from app.compare.answers import CompareReport, Contender, Question, SideState
from app.compare.report import as_json, as_markdown, lines
from app.compare.run import Comparison
from app.options import ModelOptions
from runtimes.request import SamplingParams
from tests.app import endless
from tests.support import until

STORY = "Tell me a story about a fox and a tailor in Rome"


def question(text: str, **params: Any) -> Question:
    params.setdefault("max_tokens", 64)
    return Question(({"role": "user", "content": text},), SamplingParams(**params))


def of(built: Path, *recipes: str) -> list[Contender]:
    return [Contender(str(built), ModelOptions(recipe=r), r) for r in recipes]


def finished(comparison: Comparison) -> CompareReport:
    comparison.start()
    assert comparison.join(120)
    return comparison.poll()


@pytest.fixture(scope="module")
def story(pebble_built: Path) -> CompareReport:
    """Two files whose answers part."""
    recipes = ("q4_k_m", "q8_0")
    return finished(Comparison(of(pebble_built, *recipes), question(STORY)))


def test_where_answers_part_is_what_the_files_say_by_themselves(
    story: CompareReport, pebble_built: Path
):
    """One of them is asked again without a comparison."""
    from app.models.library import load_engine, model_file
    from runtimes.settings import RunnerSettings

    assert [side.state for side in story.sides] == [SideState.DONE] * 2
    found = story.agreements[0]
    assert found is not None
    assert found.parting is not None
    assert found.unit == "tokens"
    index = found.parting.index
    side = story.sides[1]
    file = model_file(str(pebble_built), side.contender.options)
    with load_engine(file, RunnerSettings(slots=1)) as engine:
        prompt = engine.encode_chat(story.question.messages)
        (alone,) = engine.generate([prompt], SamplingParams(max_tokens=64))
    assert side.prompt == tuple(prompt)
    assert alone.token_ids == side.token_ids
    one, other = (side.token_ids for side in story.sides[:2])
    assert one[:index] == other[:index]
    assert one[index] != other[index]
    first, second = (side.text for side in story.sides[:2])
    place = story.sides[0].starts[index]
    assert place == story.sides[1].starts[index]
    assert first[:place] == second[:place]
    assert first[place:].startswith(found.parting.mine)
    assert second[place:].startswith(found.parting.theirs)
    assert found.parting.mine != found.parting.theirs


def test_equal_answers_and_files_for_people_and_programs(pebble_built: Path, story: CompareReport):
    contenders = of(pebble_built, "q8_0", "onnx-int8")
    asked = question("What is the capital of France?")
    report = finished(Comparison(contenders, asked, together=True))
    (found,) = report.agreements
    assert found is not None
    assert found.parting is None
    assert found.same == found.common == found.longest
    assert "equal" in lines(report)[-1]
    for side in report.sides:  # the token that ends the answer has no text
        assert side.finish_reason == "stop"
        assert len(side.starts) == len(side.token_ids)
        assert side.starts[-1] == len(side.text)
        assert side.piece(len(side.token_ids) - 1) == ""
        assert "".join(side.piece(i) for i in range(len(side.token_ids))) == side.text
    data = json.loads(json.dumps(as_json(story), allow_nan=False))
    assert [side["recipe"] for side in data["files"]] == ["q4_k_m", "q8_0"]
    assert data["agreements"][0]["difference"]["index"] == story.agreements[0].parting.index  # type: ignore[union-attr]
    page = as_markdown(story)
    assert f"> {STORY}" in page
    assert page.count("\n## ") == 2
    assert page.count("\n| ") == 3  # a header and two rows


def test_what_cannot_answer_does_not_keep_the_others_from_it(
    pebble_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    contenders = [*of(pebble_built, "q8_0", "no-such"), Contender(str(broken))]
    report = finished(Comparison(contenders, question("2+2?", max_tokens=4)))
    assert [side.state for side in report.sides] == [
        SideState.DONE, SideState.FAILED, SideState.FAILED
    ]  # fmt: skip
    assert "did you mean" in str(report.sides[1].error) or "no-such" in str(report.sides[1].error)
    assert "broken.gguf" in str(report.sides[2].error)
    assert report.agreements == (None, None)
    # Room for one of them at a time, then for none.
    monkeypatch.setattr(running, "memory_now", lambda: (10**9, 40_000_000))
    both = of(pebble_built, "q4_k_m", "q8_0")
    report = finished(Comparison(both, question("2+2?", max_tokens=4), together=True))
    assert [side.state for side in report.sides] == [SideState.DONE, SideState.FAILED]
    assert "beside the others" in str(report.sides[1].error)
    monkeypatch.setattr(running, "memory_now", lambda: (10**9, 1_000_000))
    report = finished(Comparison(both, question("2+2?", max_tokens=4)))
    assert all("1.0 MB are free" in str(side.error) for side in report.sides)


def test_stop_keeps_what_has_come_and_leaves_no_process(endless_built: Path):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    room = endless.CONTEXT
    asked = question(STORY, max_tokens=room - 1024, temperature=1.0, ignore_eos=True)
    files = (ModelOptions(recipe=recipe, context=room) for recipe in ("q8_0", "q4_k_m"))
    comparison = Comparison([Contender(str(endless_built), file) for file in files], asked)
    comparison.start()

    def rate() -> float | None:
        return comparison.poll().sides[0].decode_tps

    until(lambda: len(comparison.poll().sides[0].token_ids) > 3 and rate() is not None)
    live = comparison.poll().sides[0]
    assert live.state is SideState.ANSWERING
    assert live.peak_bytes is not None
    comparison.stop()
    assert comparison.join(30)
    report = comparison.poll()
    assert [side.state for side in report.sides] == [SideState.STOPPED] * 2
    assert len(report.sides[0].token_ids) > 3
    assert report.sides[0].error is None
    assert report.agreements == (None,)  # nothing is likeliest at a temperature
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert not after - before


def test_the_command(command: Any, pebble_built: Path):
    recipes = [part for name in ("q4_k_m", "q8_0", "q8_1") for part in ("--recipe", name)]
    done = command("compare", pebble_built, STORY, "--max-tokens", "24", *recipes, "--json")
    assert done.returncode == 3  # one of them could not answer
    data = json.loads(done.stdout)
    assert [len(side["token_ids"]) for side in data["files"]] == [24, 24, 0]
    assert 0 < data["agreements"][0]["difference"]["index"] < 24
    assert "did you mean q8_0" in data["files"][2]["error"]


def test_how_sure_the_files_were_there(story: CompareReport):
    for side, found in zip(story.sides[1:], story.agreements, strict=True):
        assert found is not None
        assert found.parting is not None
        mine, theirs = found.parting.logprobs
        # Greedy: each took its likeliest token, up to the rounding of another batch.
        assert mine[0] is not None
        assert theirs[1] is not None
        assert mine[1] is None or mine[0] >= mine[1] - 1e-3
        assert theirs[0] is None or theirs[1] >= theirs[0] - 1e-3
        assert all(gap is not None and gap >= 0 for gap in found.parting.gaps)
        best = sorted(side.top[found.parting.index].values())[-2:]
        assert found.parting.gaps[1] == pytest.approx(best[1] - best[0])


def test_a_thought_is_told_from_its_answer(pebble_thinks: Path, pebble_built: Path):
    """Piece by piece and at the end, and where a file that does not think parts from it."""
    contenders = [Contender(str(pebble_thinks)), *of(pebble_built, "q8_0")]
    asked = question("What is the capital of France?", max_tokens=200, thinking="low")
    report = finished(Comparison(contenders, asked))
    thinker, plain = report.sides
    assert thinker.text == plain.text == "The capital of France is Paris."
    assert (plain.thought, plain.unheeded) == ("", "the chat template cannot turn thinking on")
    assert 0 < thinker.thought_tokens < thinker.tokens == len(thinker.token_ids)
    pieces = {thinker.place(i): thinker.piece(i) for i in range(len(thinker.token_ids))}
    assert "".join(pieces.values()) == thinker.written == f"{thinker.thought}\n\n{thinker.text}"
    assert pieces[len(thinker.thought) + 2] == "The"
    assert report.agreements[0].parting.places == (0, 0)  # type: ignore[union-attr]
    page = as_markdown(report)
    assert f"Thinking:\n\n> {thinker.thought.splitlines()[0]}" in page
    said = "\n".join(lines(report))
    assert f"{thinker.thought_tokens} of thinking" in said
    assert "--thinking: the chat template knows no effort: low turns thinking on" in said
