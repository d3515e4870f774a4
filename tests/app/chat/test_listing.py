"""Chats under their days, and what a chat's model is called."""

import time

from app.chat.listing import day_group

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
