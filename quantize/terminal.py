"""Rich's console for commands: of what it prints, only its own styles are escape sequences."""

from collections.abc import Iterable

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from runtimes.untrusted import visible


class Console(rich.console.Console):
    """A console that shows control characters in texts, wherever these come from.

    A table's cell takes `visible` text where its width matters: Rich counts no width for a control
    character, and its sign has one.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Rich's, from which all that is printed comes."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield Segment(visible(text, lines=True), style)
