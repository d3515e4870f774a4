"""Prompts by template: rows are data, and a template can neither reach out nor blow up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.batch.input import prompting as template_module
from app.batch.input.prompting import Prompting, RowTemplate
from app.openai.validation import InputError, Problem
from runtimes.errors import RequestError
from tests.app.batch.input.reading import prompts


def render(text: str, fields: dict[str, Any]) -> str:
    return RowTemplate(text, "t.j2").render(fields)


def failure(text: str, fields: dict[str, Any]) -> Problem:
    with pytest.raises(InputError) as caught:
        render(text, fields)
    return caught.value.problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Q: {{ q }}\n", "Q: {{ 7 * 7 }}{% for x in y %}"),  # rows are never code
        ("{{ row['a b'] }}", "7"),
        ("{% for x in items %}{{ loop.index }}{{ x }} {% endfor %}", "1u 2v "),
        ("{{ more.deep }}", "<&>"),
        ("{{ 'what?' | tojson }}{{ items | join('-') }}", '"what?"u-v'),
        ("{{ missing | default('none') }}", "none"),
        ("{% if missing is defined %}x{% endif %}{{ 3 * 4 }}{{ 2 ** 8 }}", "12256"),
    ],
)
def test_fields_in_text(text: str, expected: str) -> None:
    fields = {"q": "{{ 7 * 7 }}{% for x in y %}", "a b": 7, "items": ["u", "v"]}
    assert render(text, {**fields, "more": {"deep": "<&>"}}) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ title }}", ("'title'", "name, body")),
        ("{{ name.deep }}", ("'deep'",)),
        ("{{ nope | tojson }}", ("'nope' is undefined",)),
        ("{{ [nope] | tojson }}", ("'nope' is undefined",)),
    ],
)
def test_a_missing_field_is_named(text: str, words: tuple[str, ...]) -> None:
    problem = failure(text, {"name": {}, "body": "y"})
    assert problem.code == "missing_field"
    assert all(word in problem.message for word in words)


@pytest.mark.parametrize(
    "text",
    [
        "{{ q.__class__.__mro__ }}",
        "{{ q.__init__.__globals__ }}",
        "{{ (q|attr('__class__')).__name__ }}",
        "{{ row.update({'x': 1}) }}",
        "{{ items.append(1) }}",
        "{{ 'x' * n }}",
        "{{ n * [q] }}",
        "{{ n ** n }}",
        "{{ q.center(n) }}",
        "{{ '{:>1000000000}'.format(q) }}",
        "{{ '%1000000000d' % n }}",
        "{% for a in range(n) %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(999) %}{{ q }}{% endfor %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ 1 / 0 }}",
        "{{ q() }}",
    ],
)
def test_refused_at_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MOST_CHARACTERS", 100_000)
    fields = {"q": "what?", "n": 10**9, "items": []}
    problem = failure(text, fields)
    assert problem.code in ("template_error", "missing_field")
    # Text that is too long is not made first and counted then.
    assert ("makes more than" in problem.message) == ("99999" in text)
    assert fields == {"q": "what?", "n": 10**9, "items": []}


@pytest.mark.parametrize("text", ["{{ q", "{% if %}", "{{ q | center(5) }}", "{% end %}"])
def test_a_template_that_does_not_compile(text: str) -> None:
    with pytest.raises(RequestError, match=r"t\.j2, line 2"):
        RowTemplate("\n" + text, "t.j2")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "t.j2"
    with pytest.raises(RequestError, match="cannot be read"):
        RowTemplate.load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(RequestError, match="not UTF-8"):
        RowTemplate.load(path)
    path.write_bytes(b"\xef\xbb\xbfSay {{ q }}")
    prompting = Prompting(template=RowTemplate.load(path))
    assert [prompting.task({"q": "x"}, None)] == prompts("Say x")
    with pytest.raises(InputError) as caught:
        Prompting(template=RowTemplate(" {{ q }}", "t.j2")).task({"q": ""}, None)
    assert caught.value.problem.code == "empty_prompt"
