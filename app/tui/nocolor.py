"""NO_COLOR (https://no-color.org): no colour code at all, not even grey or a default.

Textual turns colours into greys instead. What a background alone would tell, such as the row under
the cursor or selected text, is shown in reverse video here.
"""

import os
import re
from collections.abc import Mapping
from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

# A highlight's background differs from the widget's own by at least this much of full brightness.
_HIGHLIGHT = 0.12
# Select graphic rendition, ECMA-48 8.3.117: its parameters are attributes and colours.
_SGR = re.compile("\x1b\\[([0-9;:]*)m")
# Of them, colours: 38, 48 and 58 with "5;n" or "2;r;g;b" behind them, or one parameter each.
_COLOUR = re.compile(
    r";0*(?:[345]8(?:;5;\d*|;2(?:;\d*){3}|(?::\d*)*)|[34][0-79]|59|9[0-7]|10[0-7])(?=;|$)"
)
_PLAIN = Style(dim=False)
_REVERSED = Style(dim=False, reverse=True)


def wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether NO_COLOR is set and not empty."""
    return bool((os.environ if environ is None else environ).get("NO_COLOR"))


class Colourless(LineFilter):
    """Takes colours out of lines, and dimming, which terminals show as grey; bold, underline,
    italic and reverse stay."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments without colours; ``background`` is the widget's."""
        return [
            Segment(text, style and colourless(style, background), control)
            for text, style, control in segments
        ]


@lru_cache(4096)
def colourless(style: Style, background: Color) -> Style:
    """``style`` with its attributes only, reversed where its background is a highlight."""
    plain = style.without_color
    highlight = not style.reverse and _differs(style.bgcolor, background)
    return plain + (_REVERSED if highlight else _PLAIN)


def _differs(colour: RichColor | None, background: Color) -> bool:
    if colour is None or colour.is_default:
        return False
    return abs(Color.from_rich_color(colour).brightness - background.brightness) >= _HIGHLIGHT


def without_colours(text: str) -> str:
    """What is written to a terminal, without its colour codes: the last sieve, for what Textual
    draws without asking its filters."""
    return _SGR.sub(_attributes, text)


def _attributes(found: re.Match[str]) -> str:
    kept = _COLOUR.sub("", f";{found[1]}")[1:]
    return f"\x1b[{kept}m" if kept or not found[1] else ""
