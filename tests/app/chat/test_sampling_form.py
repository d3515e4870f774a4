"""Sampling as text fields, and as it is kept with a chat."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat import sampling_form as form
from app.config.settings import Sampling
from runtimes.request import SamplingParams

DEFAULTS = Sampling()


def test_what_is_typed_is_checked_field_by_field():
    texts = form.texts_of(DEFAULTS.params())
    assert form.read(texts, DEFAULTS) == (DEFAULTS.params(), {})
    assert form.read({}, DEFAULTS) == (DEFAULTS.params(), {})
    now = form.read({**texts, "temperature": "0,2", "seed": " 7 ", "top_k": "40"}, DEFAULTS)
    assert now == (DEFAULTS.params(temperature=0.2, seed=7, top_k=40), {})
    params, errors = form.read(
        {**texts, "temperature": "hot", "top_p": "0", "top_k": "3"}, DEFAULTS
    )
    assert set(errors) == {"temperature", "top_p"}
    assert params is None
    assert "'hot'" in errors["temperature"]
    assert form.field("TOP-P").name == "top_p"


numbers = {"allow_nan": False, "allow_infinity": False}


@given(
    st.builds(
        SamplingParams,
        max_tokens=st.integers(1, 10**6),
        temperature=st.floats(0, 10, **numbers),
        top_k=st.integers(0, 10**5),
        top_p=st.floats(1e-6, 1),
        min_p=st.floats(0, 1),
        repetition_penalty=st.floats(0.1, 3),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        seed=st.none() | st.integers(0, 2**63 - 1),
        stop=st.lists(st.text(min_size=1), max_size=3).map(tuple),
    )
)
def test_there_and_back(params: SamplingParams):
    texts = form.texts_of(params)
    blank = {name for name in ("stop",) if not texts[name].strip()}
    if not blank or not params.stop:  # stop texts of blanks only: not worth a notation
        assert form.read(texts, DEFAULTS) == (params, {})
    kept = json.loads(json.dumps(form.to_mapping(params, DEFAULTS)))
    assert form.from_mapping(kept, DEFAULTS) == params


def test_what_an_older_chat_kept_does_not_keep_it_from_opening(
    caplog: pytest.LogCaptureFixture,
):
    kept = {"temperature": 0.1, "mirostat": 2, "top_p": 7, "stop": 3, "max_tokens": "many"}
    with caplog.at_level(logging.WARNING):
        assert form.from_mapping(kept, DEFAULTS) == DEFAULTS.params(temperature=0.1)
    assert len(caplog.records) == 4
