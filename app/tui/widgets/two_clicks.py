"""A list of options with which more can be done than to take them."""

from textual import events
from textual.widgets import OptionList


class TwoClicks(OptionList):
    """The first click goes to an option, as in tables; one on the option under the cursor takes it.
    With ``at_once`` the first one does."""

    at_once = False

    def on_click(self, event: events.Click) -> None:
        """Textual calls its own next, which takes the option."""
        at = event.style.meta.get("option")
        if not self.at_once and at is not None and at != self.highlighted:
            event.prevent_default()
            if not self.get_option_at_index(at).disabled:
                self.highlighted = at
