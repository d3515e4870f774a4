"""A few hundred requests to a real server; `make fuzz` sends others."""

from __future__ import annotations

from tests.fuzz import server


def test_a_server_answers_whatever_it_is_sent(pebble_built, tmp_path, monkeypatch):
    monkeypatch.setenv("INGOT_TEST_BUILT", str(pebble_built))
    monkeypatch.setenv("INGOT_FUZZ_KEPT", str(tmp_path))
    figures = server.run(600, 2026, 90)
    assert figures["requests"] == 90
    assert figures["paths"] > 20
    assert figures["restarts"] == 1
