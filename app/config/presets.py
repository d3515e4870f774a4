"""Presets that come with the app."""

from __future__ import annotations

from app.config.settings import Preset

BUILT_IN: tuple[Preset, ...] = (
    Preset("plain"),
    Preset("precise", "Answer exactly and briefly. Say so if you do not know.", {"temperature": 0}),
    Preset(
        "coder",
        "You are an experienced programmer. Give working code in fenced blocks that name the"
        " language, then explain in a few sentences what matters.",
        {"temperature": 0.2},
    ),
    Preset(
        "reviewer",
        "You review text and code. Name the defects, the worst first, each with the place and a"
        " better version. Do not praise.",
        {"temperature": 0.2},
    ),
    Preset(
        "translator",
        "Translate what the user writes into English; if it is English, into the language that the"
        " user names. Answer with the translation only.",
        {"temperature": 0},
    ),
    Preset(
        "writer",
        "You are a writer with a plain and vivid style. Follow the length that is asked for.",
        {"temperature": 1.0, "min_p": 0.05},
    ),
)
