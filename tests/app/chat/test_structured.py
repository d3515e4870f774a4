"""The form that answers keep to, and JSON as tables."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from app.chat import sampling_form
from app.chat.structured import constraint_of, shown
from app.config.settings import Sampling
from runtimes.errors import RequestError
from runtimes.request import Constraint

DEFAULTS = Sampling()


def test_json_becomes_tables() -> None:
    order = {
        "id": 7,
        "by": {"name": "Ada | L.", "vip": True, "note": None},
        "tags": ["a", "*b*"],
        "lines": [{"item": "pen", "count": 2}, {"item": "ink", "price": {"eur": 1.5}}],
        "none": {},
        "mixed": [1, {"x": 2}],
    }
    for indent in (None, 2):
        assert shown(f" {json.dumps(order, indent=indent)}\n", ended=True) == (
            "| Field | Value |\n| --- | --- |\n| id | 7 |\n| by.name | Ada \\| L. |\n"
            "| by.vip | true |\n| by.note | null |\n| tags | a, \\*b\\* |\n| none | \\{\\} |\n"
            '| mixed | \\[1, \\{"x": 2\\}\\] |\n\n**lines**\n\n'
            "| item | count | price.eur |\n| --- | --- | --- |\n| pen | 2 |  |\n| ink |  | 1.5 |"
        )
    wide = [{f"c{i}": i for i in range(9)}] * 2
    assert shown(json.dumps(wide), ended=True).count("| Field | Value |") == 2


@pytest.mark.parametrize(
    ("text", "is_code"),
    [
        ('{"a": [1, 2', True),  # cut off
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", True),
        ('{"a": "' + "x" * 70_000 + '"}', True),
        (json.dumps([{"a": 1}] * 1000), True),
        ('{"a": 1}\n\nThat is all.', False),
        ("[link](x) says", False),
        ("Plain text.", False),
        ("", False),
    ],
)
def test_other_answers_stay(text: str, is_code: bool) -> None:
    assert shown(text, ended=True) == (f"```json\n{text}\n```" if is_code else text)


def test_what_streams_only_grows_once_it_is_json() -> None:
    text = '{"a": {"b": "x"}}'
    seen = [shown(text[:end], ended=False) for end in range(3, len(text) + 1)]
    assert all(later.startswith(one) for one, later in pairwise(seen))
    assert seen[0] == '```json\n{"a'


def test_forms_are_typed_and_kept_with_the_chat(tmp_path: Path) -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    (tmp_path / "s.json").write_text(schema)
    wanted = Constraint("json_schema", schema)
    assert constraint_of("json_schema", str(tmp_path / "s.json")) == wanted
    assert constraint_of("json_schema", schema) == wanted
    assert constraint_of("choices", r"yes | no|a\|b") == Constraint(
        "choices", '["yes", "no", "a|b"]'
    )
    assert constraint_of("choices", "OFF") is None
    kept = json.loads(
        json.dumps(sampling_form.to_mapping(DEFAULTS.params(constraint=wanted), DEFAULTS))
    )
    assert sampling_form.from_mapping(kept, DEFAULTS).constraint == wanted
    assert sampling_form.parameters(kept) == {}
    assert sampling_form.form_words(kept) == "JSON of your schema"
    for odd in (None, {"kind": "choices", "source": 5, "more": 1}):
        assert sampling_form.from_mapping({"constraint": odd}, DEFAULTS).constraint is None
        sampling_form.form_words({"constraint": odd})
    (tmp_path / "bad.json").write_text('{"type": "odd"}')
    for kind, text, why in (
        ("json_schema", str(tmp_path / "bad.json"), "schema cannot be used"),
        ("json_schema", str(tmp_path / "none.json"), "No such file"),
        ("json_schema", str(tmp_path), "cannot be read"),
        ("choices", "|", "choice"),
    ):
        with pytest.raises(RequestError, match=why):
            constraint_of(kind, text)
