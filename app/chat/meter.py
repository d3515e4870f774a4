"""``Meter``: tokens per second of an answer while it comes, from batches that are drained now and
then."""

from collections import deque

_WINDOW_S = 2.0
_SAMPLE_S = 0.25
_SAMPLES = 60


class Meter:
    """The rate over the last two seconds.

    Tokens have come between two readings, when exactly is not known: so the rate is taken from one
    reading to another, never from the time of a batch alone, and is right after a long time without
    readings too. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()  # time, tokens until then
        # The rate as it was each quarter of a second, oldest first, for a sparkline.
        self.samples: deque[float] = deque(maxlen=_SAMPLES)
        self._sampled = 0.0
        self.tokens = 0
        self.first_tokens = 1  # those that came with the first piece

    def begin(self, first: float, tokens: int = 1) -> None:
        """The first ``tokens`` came together at ``first``: the rate counts those after them."""
        self.first_tokens = tokens
        self._readings.append((first, tokens))
        self._sampled = first

    def read(self, now: float, tokens: int) -> None:
        """``tokens`` more have come until ``now``, which is not before the last reading."""
        self.tokens += tokens
        if not self._readings:
            return
        self._readings.append((now, self.tokens))
        while len(self._readings) > 2 and self._readings[1][0] <= now - _WINDOW_S:
            self._readings.popleft()
        if now - self._sampled >= _SAMPLE_S:
            self._sampled = now
            self.samples.append(self.rate or 0.0)

    @property
    def rate(self) -> float | None:
        """Tokens per second; None until there is something to divide."""
        if len(self._readings) < 2:
            return None
        (start, before), (end, after) = self._readings[0], self._readings[-1]
        return (after - before) / (end - start) if end > start else None
