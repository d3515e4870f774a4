"""Texts that a terminal, a log or a page would obey if they came through as they are."""

from __future__ import annotations

import re

OSC = "\x1b]2;PWNED\x07"
# A part of each is found again where it is shown: "PWNED".
HOSTILE = {
    "title": f"a{OSC}b",
    "title with ST": "a\x1b]0;PWNED\x1b\\b",
    "link": "\x1b]8;;http://evil.test/PWNED\x1b\\here\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;UFdORUQ=\x07PWNED",
    "colour": "\x1b[31mPWNED\x1b[0m",
    "erase": "PWNED\x1b[2K\x1b[1A\x1b[2J\x1b[H",
    "device control": "\x1bP+q544e\x1b\\PWNED",
    "application": "\x1b_GPWNED\x1b\\",
    "8 bit": "\x9b31mPWNED\x9d0;x\x9c\x90q\x9c",
    "next line": "PWNED\x85next",
    "bell": "PWNED\x07",
    "return": "good\rPWNED",
    "backspace": "good\x08\x08\x08\x08PWNED",
    "shift": "PWNED\x0e\x0f\x0b\x0c",
    "delete": "PWNED\x7f\x7f",
    "override": "PWNED\u202egnp.exe\u202c",
    "isolate": "\u2066PWNED\u2069",
    "separators": "PWNED\u2028next\u2029paragraph",
    "nul": "PWNED\x00x",
    "surrogate": "PWNED\ud800x",
    "closing tag": "PWNED[/x]",
    "action": "[@click=app.quit]PWNED[/]",
    "style": "[red on blue]PWNED[/red]",
    "link tag": "[link=http://evil.test]PWNED[/link]",
    "html": "<img src=http://evil.test/PWNED><script>PWNED()</script>",
    "image": "![PWNED](http://evil.test/x.png) [PWNED](javascript:x)",
    "markdown": "# PWNED | `code` *em* | <a href=x>",
}
# All that `visible` shows, but for line ends and tabs.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmful(text: str) -> list[str]:
    """The characters in ``text`` that a terminal would obey."""
    return _HARMFUL.findall(text)
