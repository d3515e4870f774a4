"""Chats under their days, and what a chat's model is called."""

import time

import pytest

from app.chat.listing import by_day, day_group, model_name
from app.chat.store.records import Chat, Hit

DAY = 86400
NOW = time.mktime((2026, 5, 14, 12, 0, 0, 0, 0, -1))


def test_headings():
    assert day_group(NOW, NOW) == "Today"
    assert day_group(NOW + DAY, NOW) == "Today"  # a clock that was put back
    assert day_group(NOW - 11 * 3600, NOW) == "Today"
    assert day_group(NOW - 13 * 3600, NOW) == "Yesterday"
    assert day_group(NOW - 2 * DAY, NOW) == "Previous 7 days"
    assert day_group(NOW - 7 * DAY, NOW) == "Previous 7 days"
    assert day_group(NOW - 8 * DAY, NOW) == "May"
    assert day_group(NOW - 20 * DAY, NOW) == "April"
    assert day_group(NOW - 200 * DAY, NOW) == "October 2025"


def test_groups_keep_the_order():
    ages = (0, 1000, DAY, 3 * DAY, 4 * DAY, 60 * DAY)
    hits = [Hit(Chat(n, "", 0.0, NOW - age), None, "", ()) for n, age in enumerate(ages)]
    found = [(name, [hit.chat.id for hit in group]) for name, group in by_day(hits, NOW)]
    assert found == [
        ("Today", [0, 1]), ("Yesterday", [2]), ("Previous 7 days", [3, 4]), ("March", [5]),
    ]  # fmt: skip
    assert by_day([], NOW) == []


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/home/me/models/Qwen-Q4_K_M.gguf", "Qwen-Q4_K_M"),
        ("/home/me/pebble-built/onnx-int4/", "onnx-int4"),
        ("org/Tiny-GGUF:Q4_K_M", "Tiny-GGUF:Q4_K_M"),
        (None, ""),
    ],
)
def test_names_of_models(model: str | None, name: str):
    assert model_name(model) == name
