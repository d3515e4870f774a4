"""A running job's time left: what is known of its rows, gathered for ``time_left``."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.batch.input.row import Row
from app.batch.report.answer_lengths import RowCounts
from app.batch.report.time_left import Left, Rest, RowPace, time_left
from app.batch.schedule.pool_engine import InFlightRow, PoolEngine
from runtimes.engine.metrics import EngineStats
from runtimes.request import SamplingParams

_WINDOW_S = 20.0  # speeds are those of the last so many seconds, or of half the run


@dataclass(slots=True)
class BegunRows:
    """Sums over the rows that were asked."""

    rows: int = 0
    characters: int = 0  # of their first prompts
    tokens: int = 0
    answers: int = 0  # that they get
    most: int = 0  # tokens of all of these

    def add(self, row: Row, tokens: int, params: SamplingParams) -> None:
        """Count a row that is asked for the first time."""
        answers = row.task.asked - 1 + params.samples
        self.rows += 1
        self.characters += row.task.characters
        self.tokens += tokens
        self.answers += answers
        self.most += answers * params.max_tokens


class Forecast:
    """Keeps the speeds of the last seconds. ``rows`` and ``characters`` are those of all rows that
    the model has to answer."""

    def __init__(self, rows: int, characters: int, began: float) -> None:
        """``began`` is when the first row could, in the seconds that ``left`` is called with."""
        self._rows, self._characters, self._began = rows, characters, began
        self._samples: deque[tuple[float, EngineStats]] = deque()

    def left(
        self,
        now: float,
        stats: EngineStats,
        members: Sequence[PoolEngine],
        counts: RowCounts,
        begun: BegunRows,
        *,
        draining: bool,
    ) -> Left | None:
        """None before any speed is measured."""
        if not begun.most:  # nothing is generated: rows take what rows took
            done = counts.answered + counts.failed
            rows = begun.rows - done if draining else self._rows - done
            each = (now - self._began) / done if done else 0.0
            return Left(each * rows, each * rows, each * rows) if done else None
        pace = self._pace(now, stats)
        if pace is None or not begun.rows:
            return None
        working = [row for member in members for row in member.running]
        rest = self._rest(working, stats, counts, begun)
        if draining:
            rest = Rest(rest.running, 0, rest.most, _unread(working), rest.slots)
        return time_left(rest, counts.lengths, pace)

    def _rest(
        self,
        working: Sequence[InFlightRow],
        stats: EngineStats,
        counts: RowCounts,
        begun: BegunRows,
    ) -> Rest:
        running = [part for row in working for part in row.so_far()]
        done = counts.answered + counts.failed
        rows = max(0, self._rows - done - len(working))
        each = begun.answers / begun.rows
        later = sum(row.input.task.asked - len(row.completions) - 1 for row in working)
        characters = max(0, self._characters - begun.characters)
        # Rows that wait in an engine are begun, and have not been read.
        waiting = begun.rows - done - len(working)
        unread = characters * begun.tokens / max(1, begun.characters)
        unread += max(0, waiting) * begun.tokens / begun.rows
        found = stats.prompt_tokens + stats.cached_tokens
        computed = stats.prompt_tokens / found if found else 1.0
        return Rest(
            running=running,
            waiting=round(rows * each) + later,
            most=round(begun.most / begun.answers),
            prompt_tokens=unread * computed + _unread(working),
            slots=max(1, stats.slots),
        )

    def _pace(self, now: float, stats: EngineStats) -> RowPace | None:
        samples = self._samples
        if samples and stats.decode_tokens < samples[-1][1].decode_tokens:
            samples.clear()  # a process that was started anew counts anew
        samples.append((now, stats))
        window = max(_WINDOW_S, (now - self._began) / 2)
        while len(samples) > 2 and samples[1][0] <= now - window:
            samples.popleft()
        begun, first = samples[0]
        tokens = stats.decode_tokens - first.decode_tokens
        decode_s = stats.decode_s - first.decode_s
        rows = [one.decoding for _, one in samples if one.decoding]
        if tokens <= 0 or decode_s <= 0 or not rows:
            return None
        occupied = sum(rows) / len(rows)
        steps_s = decode_s + stats.prefill_s - first.prefill_s
        overhead = (now - begun) / steps_s if steps_s else 1.0
        return RowPace(
            prefill_tps=stats.prefill_tps,
            row_tps=tokens / decode_s / occupied,
            rows=occupied,
            overhead=min(max(overhead, 1.0), 3.0),
        )


def _unread(working: Iterable[InFlightRow]) -> int:
    """Prompt tokens of rows that have a slot and no answer's first token yet."""
    return sum(row.prompt_tokens for row in working if not row.tokens)
