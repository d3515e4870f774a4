"""Templates from anybody: they render as in transformers, or are refused in time."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from app.batch.input.prompting import RowTemplate
from app.openai.tool_forms import form_of
from app.openai.validation import InputError
from runtimes.chat import render_chat
from runtimes.errors import RequestError
from runtimes.templates.budget import MOST_MADE, Budget, within
from runtimes.templates.sandbox import Sandbox
from tests.conftest import ROOT
from tests.runtimes.templates.hostile import HOSTILE
from tests.runtimes.templates.usual import CONVERSATION, TOOLS, USUAL

MOST_MB = 220


def test_no_template_takes_all_time_or_memory() -> None:
    """Each in one process, whose memory is bounded, with a part of the usual time."""
    command = f"ulimit -v 4000000; exec {sys.executable} -m tests.runtimes.templates.hostile 0.02"
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(HOSTILE)
    for number, seconds, most_mb, came in lines:
        assert seconds < 5, (HOSTILE[number][:200], seconds)
        assert most_mb < MOST_MB, (HOSTILE[number][:200], most_mb)
        assert len(came) < 400
    assert "Traceback" not in done.stderr


_OFTEN, _END = "{% for a in range(50) %}", "{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        _OFTEN + "{% set x = LIST %}" + _END,
        _OFTEN + "{% for b in [LIST] %}{% endfor %}" + _END,
        _OFTEN + "{% for b in [] %}{% else %}{% set x = LIST %}{% endfor %}" + _END,
        "{% macro m(b=LIST) %}{% endmacro %}" + _OFTEN + "{{ m() }}" + _END,
        "{% macro m(b) %}{{ caller() }}{% endmacro %}"
        + _OFTEN
        + "{% call m(LIST) %}{% endcall %}"
        + _END,
    ],
)
def test_a_list_counts_whenever_it_is_made(template: str) -> None:
    with within(Budget()) as budget:
        Sandbox().from_string(template.replace("LIST", f"[{'1,' * 1000}]")).render()
    assert MOST_MADE - budget.room > 50 * 2 * 1000


@pytest.mark.parametrize("name", USUAL)
def test_usual_templates_render_as_in_transformers(name: str) -> None:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    for tools in (None, TOOLS):
        for messages in (CONVERSATION, CONVERSATION[:2]):
            given: dict[str, Any] = {"messages": messages, "tools": tools, "documents": None}
            expected = _compile_jinja_template(USUAL[name]).render(
                **given, bos_token="<s>", eos_token="</s>", add_generation_prompt=True
            )
            got = render_chat(USUAL[name], messages, bos_token="<s>", eos_token="</s>", tools=tools)
            assert got == expected


@pytest.mark.parametrize(
    "expression",
    [
        "'a-b' | upper ~ 'x' | center(5) ~ '|' ~ 'a\nb' | indent(2, true)",
        "[3, 1, 2] | sort ~ [1, 1, 2] | unique | list ~ [1, 2, 3] | batch(2) | list",
        "[1, 2, 3] | slice(2) | map('join', '-') | list",
        "{'b': 1, 'a': 2} | dictsort ~ {'b': 1, 'a': 2}.items() | list ~ {'a': 1}.get('b', 5)",
        "{'b': [1, 2.5, none, true, 'é<']} | tojson(indent=2, sort_keys=true)",
        "[{'a': 1}, {'a': 2}] | map(attribute='a') | sum ~ [[1], [2]] | sum(start=[])",
        "[{'a': 1}, {'a': 2}] | selectattr('a', 'gt', 1) | list | length",
        "[{'a': 1}, {'a': 1}] | groupby('a')",
        "'%s is %05.1f%%' % ('x', 2.25) ~ '%(a)s' % {'a': 'b'} ~ '%d' | format(7)",
        "'{} {a!r} {:>4}'.format('x', 'y', a='z') ~ '{a}'.format_map({'a': 1})",
        "'a,b,,c'.split(',') ~ 'a b  c'.split() ~ 'a\nb'.splitlines() ~ ' x '.strip()",
        "'abc'[::-1] ~ [1, 2, 3][1:] ~ 'ab' * 3 ~ [0] * 2 ~ 7 // 2 ~ 7 % 4 ~ 2 ** 10 ~ 1 / 4",
        "'<&\"' | e ~ '<b>' | safe ~ 'a b' | title ~ 'a b c' | wordcount ~ 'abc' | truncate(3)",
        "('a' in 'abc', 2 in [1, 2], 'k' in {'k': 1}, [1] == [1], (1, 2) < (1, 3))",
        "range(5) | list ~ range(3) | last ~ 'abc' | first ~ [1, 2] | reverse | list",
        "('12' | int + 1) ~ '1.5' | float ~ 'x' | int(3) ~ 'ff' | int(0, 16) ~ 2.567 | round(1)",
        "'a' is string and 1 is number and {} is mapping and x is not defined and 3 is odd",
        "'hello'.replace('l', 'L') ~ 'x'.join(['a', 'b']) ~ 'a_b'.partition('_') ~ 'ab'.rfind('b')",
        "dict(a=1, b=2) ~ messages | map(attribute='role') | list ~ (messages | last).content",
        "'a' if messages else 'b' ~ messages | rejectattr('role', 'equalto', 'user') | list",
    ],
)
def test_expressions_give_what_jinja_gives(expression: str) -> None:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    text = "{{ " + expression + " }}"
    expected = _compile_jinja_template(text).render(messages=CONVERSATION, tools=None)
    assert render_chat(text, CONVERSATION) == expected


def test_a_conversation_may_be_large() -> None:
    messages = [{"role": "user", "content": "word " * 2000}] * 400
    for template in USUAL.values():
        assert len(render_chat(template, messages)) > 4_000_000


@pytest.mark.parametrize("number", [0, 3, 19, 29, 32, 83, 105])
def test_row_templates_have_the_same_bounds(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtimes.templates.budget.MOST_SECONDS", 0.05)
    with pytest.raises((InputError, RequestError)):
        RowTemplate(HOSTILE[number], "t.j2").render({"q": "x"})


def test_the_form_of_tools_is_found_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtimes.templates.budget.MOST_SECONDS", 0.05)
    for number in (0, 19, 29, 112, 152):
        assert not form_of(HOSTILE[number]).told
