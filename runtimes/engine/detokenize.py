"""Tokens to text as they come: whole UTF-8 characters only, stop strings never shown."""

from encodings.utf_8 import IncrementalDecoder


class Detokenizer:
    """Text of one completion, fed with each token's bytes.

    What could still become a stop string, or is half a character, is held back until it is decided.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._decoder = IncrementalDecoder(errors="replace")
        self._stop = stop
        self._begun = [_Begun(text) for text in stop]
        self._held = ""
        self.text = ""
        self.stopped_by: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come."""
        return self.stopped_by is not None

    def feed(self, piece: bytes, *, may_stop: bool = True) -> str:
        """Take one token's bytes; return the text that is now certain (maybe empty).

        Without ``may_stop`` stop strings in it do not count, and it is not held back for one.
        """
        whole = piece.isascii() and not self._decoder.buffer  # most are, and the decoder is slow
        text = piece.decode("ascii") if whole else self._decoder.decode(piece)
        return self.add(text, may_stop=may_stop)

    def finish(self) -> str:
        """Return what was held back, at the end of the completion."""
        return self.add(self._decoder.decode(b"", final=True), final=True)

    def add(self, text: str, *, may_stop: bool = True, final: bool = False) -> str:
        """Take text that is whole characters already; return as ``feed``, or all that is left."""
        if not self._stop:
            self.text += text
            return text
        if self.stopped:
            return ""
        self._held += text
        if not may_stop:
            for begun in self._begun:
                begun.length = 0
            out, self._held = self._held, ""
            self.text += out
            return out
        places = ((self._held.find(stop), stop) for stop in self._stop)
        found = min((place for place in places if place[0] >= 0), default=None)
        if found:
            at, self.stopped_by = found
            out, self._held = self._held[:at], ""
        else:
            # The longest tail that a stop string begins with.
            undecided = max((begun.feed(text) for begun in self._begun), default=0)
            cut = len(self._held) - (0 if final else undecided)
            out, self._held = self._held[:cut], self._held[cut:]
        self.text += out
        return out


class _Begun:
    """How much of one stop string the text ends with, kept up to date in linear time (Knuth,
    Morris and Pratt, "Fast pattern matching in strings", 1977)."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self.length = 0
        # For each beginning of it, the length of the longest shorter one that it ends with.
        self._shorter = [0]
        length = 0
        for char in stop[1:]:
            length = self._after(char, length)
            self._shorter.append(length)

    def feed(self, text: str) -> int:
        """The length after ``text``, in which the stop string itself does not end."""
        length = self.length
        for char in text:
            length = self._after(char, length)
        self.length = length
        return length

    def _after(self, char: str, length: int) -> int:
        while length and self._stop[length] != char:
            length = self._shorter[length - 1]
        return length + 1 if self._stop[length] == char else 0
