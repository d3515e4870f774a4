"""How the app looks: its own two themes, its tokens, and text that can be read in every theme.

A style sheet names what something means, by Textual's own variables: ``$text`` and ``$text-muted``
for text, ``$text-primary`` for what is active, ``$text-success``, ``$text-warning`` and
``$text-error`` for done, waiting and failed, ``$hue-1`` to ``$hue-4`` for what stands beside each
other and is told apart, ``$border`` and ``$border-blurred`` around panels, on
``$background``, ``$surface`` (dialogs) or ``$panel`` (bars). What is no colour is one of the
``tokens`` below. The classes that all screens share, such as ``pane``, are in app.tcss.
"""

import os
import re
from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

CONTRAST = 4.5  # WCAG 2.2, 1.4.3: of text against what is behind it
# Of files beside each other, far from what states are told by; and where the terminal has its own.
_HUES = {"hue-1": "#6FB3E0", "hue-2": "#D98FD0", "hue-3": "#4FC4B0", "hue-4": "#B3A0F0"}
_ANSI_HUES = {
    "hue-1": "ansi_cyan",
    "hue-2": "ansi_bright_magenta",
    "hue-3": "ansi_bright_white",
    "hue-4": "ansi_bright_cyan",
}
_TEXT = (
    "foreground",
    "text-muted",
    "text-primary",
    "text-secondary",
    "text-accent",
    "text-success",
    "text-warning",
    "text-error",
    "link-color",
    *(f"markdown-h{level}-color" for level in range(1, 7)),
    *_HUES,
)
_TEXT_ON = {  # what stands on a background of its own
    "footer-foreground": "footer-background",
    "footer-key-foreground": "footer-background",
    "footer-description-foreground": "footer-background",
    "block-cursor-foreground": "block-cursor-background",
    "input-cursor-foreground": "input-cursor-background",
    "text-on-primary": "primary",
    "text-on-error": "error",
}
_TOKENS = {
    "frame": "round",  # border: $frame $border-blurred
    "frame-focus": "round",  # border: $frame-focus $border, of what has the focus
    "gap": "1",  # columns between panels, lines between groups
    "pad": "0 1",  # padding within a panel
    "pad-dialog": "1 2",  # padding within a dialog
    "column": "100",  # the widest that text runs
}
_PLAIN = {"frame-focus": "heavy"}  # where the colour of a border cannot tell
_FOCUS = 0.05  # how much of the text's colour Textual mixes into a line that has the focus

# Molten metal on slate, and on paper. Textual's themes can be chosen as well.
INGOT = Theme(
    name="ingot",
    primary="#E8A33D",
    secondary="#8FA3B8",
    accent="#F2C572",
    warning="#E3B341",
    error="#E5534B",
    success="#57AB5A",
    foreground="#D7DEE6",
    background="#11161C",
    surface="#181F27",
    panel="#222C36",
    variables={
        "footer-key-foreground": "#E8A33D",
        "input-selection-background": "#E8A33D 30%",
        "block-cursor-foreground": "#11161C",
        "button-color-foreground": "#11161C",
        "border-blurred": "#4A5866",
        "scrollbar": "#3A4754",
        "scrollbar-background": "#11161C",
        "scrollbar-background-hover": "#181F27",
        "scrollbar-background-active": "#181F27",
        "text-primary": "#E8A33D",
        "text-success": "#6CC070",
        "text-warning": "#E6D35C",
        "text-error": "#F48079",
    },
)
INGOT_LIGHT = Theme(
    name="ingot-light",
    dark=False,
    primary="#9A5B00",
    secondary="#4A5F75",
    accent="#7A4A05",
    warning="#8A6100",
    error="#B3261E",
    success="#22692B",
    foreground="#1E252C",
    background="#FBF9F5",
    surface="#F3EFE8",
    panel="#E8E2D8",
    variables={
        "footer-key-foreground": "#8A5200",
        "input-selection-background": "#E8A33D 40%",
        "block-cursor-background": "#8A5200",
        "block-cursor-foreground": "#FFFFFF",
        "button-color-foreground": "#FFFFFF",
        "border-blurred": "#B9AE9D",
        "scrollbar": "#CFC6B8",
        "scrollbar-background": "#FBF9F5",
        "scrollbar-background-hover": "#F3EFE8",
        "scrollbar-background-active": "#F3EFE8",
        "text-primary": "#844E00",
        "text-success": "#1F6428",
        "text-warning": "#655600",
        "text-error": "#A82018",
    },
)
# Sixteen colours, as the terminal has them, on its black: of those, what can be read is the bright
# ones. Its default paper may be white, on which no yellow can be read.
INGOT_TERMINAL = Theme(
    name="ingot-terminal",
    ansi=True,
    primary="ansi_bright_yellow",
    secondary="ansi_cyan",
    accent="ansi_bright_yellow",
    warning="ansi_bright_yellow",
    error="ansi_bright_red",
    success="ansi_green",
    foreground="ansi_white",
    background="ansi_black",
    surface="ansi_black",
    panel="ansi_black",
    boost="ansi_black",
    variables={
        "ansi-background": "ansi_black",
        "ansi-foreground": "ansi_white",
        "border": "ansi_bright_yellow",
        "border-blurred": "ansi_bright_black",
        "text": "ansi_white",
        "text-muted": "ansi_white",
        "text-on-primary": "ansi_black",
        "text-on-error": "ansi_black",
        "footer-key-foreground": "ansi_bright_yellow",
        "block-cursor-foreground": "ansi_black",
        "block-cursor-background": "ansi_bright_yellow",
        "input-cursor-background": "ansi_white",
        "input-cursor-foreground": "ansi_black",
        "input-selection-foreground": "ansi_black",
        "scrollbar": "ansi_bright_black",
        "button-color-foreground": "ansi_black",
        "link-color": "ansi_cyan",
        "link-background-hover": "ansi_cyan",
        "markdown-h1-color": "ansi_bright_yellow",
        "markdown-h2-color": "ansi_bright_yellow",
        "markdown-h3-color": "ansi_cyan",
    },
)
OWN = (INGOT, INGOT_LIGHT, INGOT_TERMINAL)


class OnBlack(LineFilter):
    """Black where Textual leaves the background to the terminal, with white for its text; and all
    text black on what is no black: see ``INGOT_TERMINAL``."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, _on_black(style or Style()), control) for text, style, control in segments
        ]


@lru_cache(4096)
def _on_black(style: Style) -> Style:
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
        return {**_ANSI_HUES, **variables}
    variables = {**_HUES, **variables}
    ink = Color.parse(variables["foreground"])
    behind = [Color.parse(variables[name]) for name in ("background", "surface", "panel")]
    behind += [one.blend(ink, _FOCUS) for one in behind]
    changed = {name: _readable(variables[name], behind) for name in _TEXT if name in variables}
    for name, under in _TEXT_ON.items():
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
