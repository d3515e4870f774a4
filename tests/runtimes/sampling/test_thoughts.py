"""Thoughts told from answers: tags in any pieces, budgets, repetition, constraints behind them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes.request import Constraint, Thinking, ThoughtForm
from runtimes.sampling.grammar import GrammarCompiler
from runtimes.sampling.thoughts import CLOSING, ThoughtPhase, Thoughts, ThoughtTokens, repeats
from runtimes.thinking import choice_of, thought_form

TAGS = ThoughtForm("<think>", "</think>")
CHANNELS = thought_form("{{ '<|channel|>analysis<|message|>' }}")
assert CHANNELS is not None
END = 256


class Bytes:
    """A tokenizer whose tokens are bytes, some pairs of bytes, and control tokens without text."""

    bos_token, eos_token, eos_ids = "", "<end>", frozenset({END})
    pairs = (b"e>", b">{", b">\n", b"k>")
    controls = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")
    vocab_size = 257 + len(pairs) + len(controls)

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        ids, data = [], text.encode()
        while data:
            found = [c for c in self.controls if parse_special and data.startswith(c.encode())]
            if found:
                ids.append(257 + len(self.pairs) + self.controls.index(found[0]))
                data = data[len(found[0]) :]
            else:
                ids.append(data[0])
                data = data[1:]
        return ids

    def token_bytes(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        at = token - 257
        return self.pairs[at] if 0 <= at < len(self.pairs) else b""


TOKENIZER = Bytes()
COMPILER = GrammarCompiler(TOKENIZER)


def follower(
    prompt: str = "",
    *,
    budget: int | None = None,
    constraint: Constraint | None = None,
    form: ThoughtForm = TAGS,
    expected: bool = True,
) -> Thoughts:
    matcher = None
    if constraint is not None:
        from runtimes.grammars import grammar_of

        matcher = COMPILER.compile(constraint, grammar_of(constraint))()
    thinking = Thinking(form, expected=expected)
    return Thoughts(
        ThoughtTokens(TOKENIZER, form), TOKENIZER.encode(prompt), thinking, budget, matcher
    )


def said(one: Thoughts, tokens: list[int]) -> tuple[str, str]:
    """The thought and the answer that tokens make, and what is forced after them."""
    thought = answer = ""
    for token in tokens:
        one.accept(token)
        thought, answer = thought + one.said.thought, answer + one.said.answer
    rest = one.finish()
    return thought + rest.thought, answer + rest.answer


def generated(one: Thoughts, wished: str, most: int = 400) -> tuple[str, str]:
    """The thought and answer of a model that would say ``wished``, byte for byte, if it could."""
    wishes, thought, answer = list(wished.encode()), "", ""
    endings = np.array([END])
    for _ in range(most):
        token = one.override
        if token is None:
            logits = np.linspace(0, 1e-3, TOKENIZER.vocab_size).astype(np.float32)
            logits[END] = 1.0
            if wishes:
                logits[wishes[0]] = 2.0
            if one.masks:
                one.mask(logits, endings)
            token = int(logits.argmax()) if one.override is None else one.override
            if token == END:
                break
        if wishes and token == wishes[0]:
            del wishes[0]
        one.accept(token)
        thought, answer = thought + one.said.thought, answer + one.said.answer
        if one.complete:
            break
    rest = one.finish()
    return thought + rest.thought, answer + rest.answer


@pytest.mark.parametrize(
    ("prompt", "text", "thought", "answer"),
    [
        ("", "<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
        ("", "\n<think>hm</think>Yes.", "hm", "Yes."),
        ("", "Yes. <think>no</think>", "", "Yes. <think>no</think>"),
        ("", "<thin", "", "<thin"),
        ("", "<think>never ended\n", "never ended", ""),
        ("", "<think>a </th b</think>c", "a </th b", "c"),
        ("", "<think>a\n\nb\n</think>\n\n  c\n", "a\n\nb", "c\n"),
        ("Q<think>\n", "hm\n</think>\n\nYes.", "hm", "Yes."),
        ("Q<think>\n\n</think>\n\n", "Yes. <think>", "", "Yes. <think>"),
        ("Q<think>\n", "</think>x</think>y", "", "x</think>y"),
    ],
)
def test_told_apart(prompt: str, text: str, thought: str, answer: str) -> None:
    assert said(follower(prompt), TOKENIZER.encode(text)) == (thought, answer)


def test_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    )
    assert CHANNELS is not None
    assert said(follower(form=CHANNELS), TOKENIZER.encode(text)) == ("hm", "Yes.")
    text = "<|channel|>final<|message|>Yes."
    assert said(follower(form=CHANNELS), TOKENIZER.encode(text)) == ("", "Yes.")


@given(st.text("ab<>/think\n", max_size=60), st.text("ab<>/think\n", max_size=60))
def test_nothing_is_lost(inside: str, after: str) -> None:
    tokens = TOKENIZER.encode(f"{inside}</think>{after}")
    one = follower("<think>")
    thought, answer = said(one, tokens)
    whole, _, rest = f"{inside}</think>{after}".partition("</think>")
    assert thought == whole.strip("\n")
    assert answer == rest.lstrip()
    assert one.text == thought


@pytest.mark.parametrize("budget", [0, 1, 5, 30])
@pytest.mark.parametrize("prompt", ["", "<think>\n"])
def test_a_budget_ends_a_thought(prompt: str, budget: int) -> None:
    wished = "" if prompt else "<think>"
    one = follower(prompt, budget=budget)
    thought, answer = generated(one, f"{wished}{'0123456789' * 4}", most=100)
    assert one.phase is ThoughtPhase.ANSWER
    if budget == 0:
        assert thought == ""
    else:
        inside = ("0123456789" * 4)[:budget]
        assert thought == inside + CLOSING.rstrip("\n")
    assert answer == "" or not answer.startswith("<")


def test_a_tag_that_has_begun_is_ended_as_it_is() -> None:
    one = follower("<think>", budget=6)
    thought, _ = generated(one, "abcd</thought> is a word", most=60)
    assert thought == "abcd"


def test_a_thought_that_repeats_itself_is_ended() -> None:
    one = follower("<think>")
    thought, _ = generated(one, "first. " + "again and again, " * 60, most=800)
    assert thought.endswith(CLOSING.rstrip("\n"))
    assert 256 <= len(thought) - len(CLOSING) <= 256 + 7 + 64


def test_the_tag_of_a_model_that_goes_on_thinking_is_left_out() -> None:
    one = follower("<think>", budget=4)
    _, answer = generated(one, "hmhm more\n</think>\n\nYes </th", most=90)
    assert answer == "more\n\n\nYes </th"
    assert said(follower("<think>"), TOKENIZER.encode("a</think>b</think>c")) == ("a", "b</think>c")


def test_repetition_needs_a_period() -> None:
    assert repeats([1, 2, 3] * 90)
    assert repeats(list(range(500)) + [7] * 256)
    assert not repeats([1, 2, 3] * 80)
    assert not repeats(list(range(300)))
    assert not repeats(list(range(100)) * 3)  # a period of 100 is a list that is gone through again


CONSTRAINTS = [
    Constraint(
        "json_schema",
        json.dumps(
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": False,
            }
        ),
    ),
    Constraint("regex", "[0-9]{3}"),
    Constraint("choices", '["yes", "no"]'),
    Constraint("grammar", 'start: "x" | "y"'),
]


def valid(constraint: Constraint, answer: str) -> bool:
    match constraint.kind:
        case "json_schema":
            return isinstance(json.loads(answer)["a"], int)
        case "regex":
            return len(answer) == 3 and answer.isdigit()
        case "choices":
            return answer in ("yes", "no")
    return answer in ("x", "y")


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda one: one.kind)
@pytest.mark.parametrize("budget", [0, 4, None])
@pytest.mark.parametrize("prompt", ["", "Q<think>\n", "Q<think>\n\n</think>\n\n"])
@pytest.mark.parametrize(
    "wished", ["hm</think>", "hm</think>\n\n", 'hm</think>{"a"', "", "<think>hm</think>", "hm"]
)
def test_a_constraint_holds_behind_the_thought(
    prompt: str, wished: str, budget: int | None, constraint: Constraint
) -> None:
    one = follower(prompt, budget=budget, constraint=constraint)
    thought, answer = generated(one, wished, most=1500)
    assert valid(constraint, answer), (thought, answer)
    assert "think" not in answer


def test_what_turns_thoughts_off_leaves_only_the_constraint() -> None:
    one = follower(constraint=CONSTRAINTS[2], expected=False)
    assert generated(one, "<think>hm</think>yes") == ("", "yes")


def test_a_token_that_ends_the_tag_and_goes_on_is_not_drawn() -> None:
    one = follower("<think>", constraint=CONSTRAINTS[0])
    for token in TOKENIZER.encode("hm</think"):
        one.accept(token)
    logits = np.zeros(TOKENIZER.vocab_size, np.float32)
    one.mask(logits, np.array([END]))
    assert np.isneginf(logits[257 + TOKENIZER.pairs.index(b">{")])
    assert logits[257 + TOKENIZER.pairs.index(b">\n")] == 0
    assert np.isneginf(logits[END])


def test_a_thought_ends_where_the_model_would_end_the_answer() -> None:
    one = follower("<think>", constraint=CONSTRAINTS[2])
    assert generated(one, "hm") == ("hm", "yes")


@pytest.mark.parametrize(
    ("template", "level", "variables", "budget"),
    [
        ("{% if enable_thinking %}<think>{% endif %}", "off", {"enable_thinking": False}, None),
        ("{% if enable_thinking %}<think>{% endif %}", "on", {"enable_thinking": True}, None),
        ("{% if thinking %}<think>{% endif %}", "off", {"thinking": False}, None),
        ("{{ reasoning_effort }}<|channel|>analysis", "low", {"reasoning_effort": "low"}, None),
        ("<think>\n", "off", {}, 0),
        ("plain", "off", {}, None),
        ("plain", None, {}, None),
    ],
)
def test_levels(template: str, level: object, variables: object, budget: object) -> None:
    found = choice_of(template, level)  # type: ignore[arg-type]
    assert (dict(found.variables), found.budget, found.unknown) == (variables, budget, None)


def test_a_level_that_a_template_does_not_know_is_said() -> None:
    assert "cannot turn thinking on" in str(choice_of("plain", "on").unknown)
    assert "no switch" in str(choice_of("<think>", "high").unknown)
    assert "no effort" in str(choice_of("{{ enable_thinking }}", "high").unknown)
