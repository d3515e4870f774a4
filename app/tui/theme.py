"""How the app looks: its own two themes, its tokens, and text that can be read in every theme.

A style sheet names what something means, by Textual's own variables: ``$text`` and ``$text-muted``
for text, ``$text-primary`` for what is active, ``$text-success``, ``$text-warning`` and
``$text-error`` for done, waiting and failed, ``$hue-1`` to ``$hue-4`` for what stands beside each
other and is told apart, ``$border`` and ``$border-blurred`` around panels, on
``$background``, ``$surface`` (dialogs) or ``$panel`` (bars). What is no colour is one of the
tokens of themes.toml. The classes that all screens share, such as ``pane``, are in app.tcss.
"""

import os
import re
import tomllib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

CONTRAST = 4.5  # WCAG 2.2, 1.4.3: of text against what is behind it
_LOOK = tomllib.loads(Path(__file__).with_name("themes.toml").read_text(encoding="utf-8"))
_HUES: dict[str, str] = _LOOK["hues"]
_TOKENS: dict[str, str] = _LOOK["tokens"]
_TEXT = (*_LOOK["text"], *(f"markdown-h{level}-color" for level in range(1, 7)), *_HUES)
_PLAIN = {"frame-focus": "heavy"}  # where the colour of a border cannot tell
_FOCUS = 0.05  # how much of the text's colour Textual mixes into a line that has the focus

OWN = tuple(Theme(**values) for values in _LOOK["themes"])  # Textual's can be chosen as well
INGOT, INGOT_LIGHT, INGOT_TERMINAL = OWN


class Restyled(LineFilter):
    """Each stretch of a line in the style that ``made`` makes of its own and the widget's
    background."""

    def __init__(self, made: Callable[[Style, Color], Style]) -> None:
        super().__init__()
        self._made = made

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, self._made(style or Style(), background), control)
            for text, style, control in segments
        ]


@lru_cache(4096)
def on_black(style: Style, _: Color) -> Style:
    """Black where Textual leaves the background to the terminal, with white for its text; and all
    text black on what is no black: see INGOT_TERMINAL."""
    ink, paper = style.color, style.bgcolor
    if not (paper is None or paper.is_default or paper.number == 0):
        return style + Style(color="black")
    white = ink is None or ink.is_default or ink.number == 0
    return style + Style(color="white" if white else None, bgcolor="black")


def tokens() -> dict[str, str]:
    """The variables that are no colours; others where colours are not to be seen."""
    return _TOKENS | _PLAIN if no_color() else _TOKENS


def legible(variables: dict[str, str]) -> dict[str, str]:
    """A theme's CSS variables, in which each colour of text has the contrast on all that text
    stands on. Themes of the terminal's own colours, which nobody here knows, are as they were."""
    variables = {"text-on-primary": "auto", "text-on-error": "auto", **variables}
    paper = Color.parse(variables["background"])
    if paper.ansi is not None:
        return {**_LOOK["ansi-hues"], **variables}
    variables = {**_HUES, **variables}
    ink = Color.parse(variables["foreground"])
    behind = [Color.parse(variables[name]) for name in ("background", "surface", "panel")]
    behind += [one.blend(ink, _FOCUS) for one in behind]
    changed = {name: _readable(variables[name], behind) for name in _TEXT if name in variables}
    for name, under in _LOOK["text-on"].items():
        changed[name] = _readable(variables[name], [Color.parse(variables[under])])
    return {**variables, **changed}


def _readable(value: str, behind: list[Color]) -> str:
    """A colour of text, moved towards black or white as far as it must be."""
    ink = max((Color(0, 0, 0), Color(255, 255, 255)), key=lambda ink: contrast(ink, behind[0]))
    if value.startswith("auto"):  # black or white, such as "auto 60%"
        share = float(value.removeprefix("auto").strip(" %") or 100) / 100
        colour = behind[0].blend(ink, share)
    else:
        colour = Color.parse(value)
    for step in range(21):
        moved = colour.blend(ink, step / 20, alpha=1.0)
        if all(contrast(moved, under) > CONTRAST + 0.1 for under in behind):
            return moved.hex
    return ink.hex


def contrast(one: Color, other: Color) -> float:
    """The contrast ratio of two opaque colours, 1 to 21, as WCAG 2.2 defines it."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Color) -> float:
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in colour.normalized
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# NO_COLOR (https://no-color.org): no colour code at all, not even grey or a default.
#
# Textual turns colours into greys instead. What a background alone would tell, such as the row
# under the cursor or selected text, is shown in reverse video here.


# A highlight's background differs from the widget's own by at least this much of full brightness.
_HIGHLIGHT = 0.12
# Select graphic rendition, ECMA-48 8.3.117: its parameters are attributes and colours.
_SGR = re.compile("\x1b\\[([0-9;:]*)m")
# Of them, colours: 38, 48 and 58 with "5;n" or "2;r;g;b" behind them, or one parameter each.
_COLOUR = re.compile(
    r";0*(?:[345]8(?:;5;\d*|;2(?:;\d*){3}|(?::\d*)*)|[34][0-79]|59|9[0-7]|10[0-7])(?=;|$)"
)
_NO_STYLE = Style(dim=False)
_REVERSED = Style(dim=False, reverse=True)


def no_color() -> bool:
    """Whether NO_COLOR is set and not empty."""
    return bool(os.environ.get("NO_COLOR"))


@lru_cache(4096)
def colourless(style: Style, background: Color) -> Style:
    """``style`` without colours, and dimming, which terminals show as grey; bold, underline and
    italic stay, and it is reversed where its background is a highlight."""
    plain = style.without_color
    highlight = not style.reverse and _differs(style.bgcolor, background)
    return plain + (_REVERSED if highlight else _NO_STYLE)


def _differs(colour: RichColor | None, background: Color) -> bool:
    if colour is None or colour.is_default:
        return False
    return abs(Color.from_rich_color(colour).brightness - background.brightness) >= _HIGHLIGHT


def without_colours(text: str) -> str:
    """Take the colour codes out of a text for the terminal: the last sieve, for what Textual draws
    without asking its filters."""
    return _SGR.sub(_attributes, text)


def _attributes(found: re.Match[str]) -> str:
    kept = _COLOUR.sub("", f";{found[1]}")[1:]
    return f"\x1b[{kept}m" if kept or not found[1] else ""
