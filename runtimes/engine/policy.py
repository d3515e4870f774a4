"""Scheduling policy: the order of waiting sequences, four ways to form batches of them, who must
give up its slot, and how many prompt tokens a step takes. Plain functions; the scheduler carries
them out.

Sequences wait in the order of ``arrival + priority * aging``: a CRITICAL request overtakes a LOW
one that came up to three agings earlier, and none after that, so that none starves.
"""

from collections.abc import Iterable

from runtimes.engine.sequence import Sequence
from runtimes.request import Priority
from runtimes.settings import SchedulerSettings

# Tokens of several short prompts that go in together; with more, no pass is faster by the token.
MOST_TOGETHER = 128
LEAST_CHUNK = 32  # tokens of a prompt; less would cost nearly as much as this many
_FIRST_CHUNK = 256  # tokens, before the rate is known


def admissible(
    waiting: list[Sequence],
    running: tuple[Sequence, ...],
    free: int,
    now: float,
    settings: SchedulerSettings,
    *,
    adapters_apart: bool = False,
) -> list[Sequence]:
    """The waiting sequences, given in their order, that the strategy lets in: at most ``free``.
    ``adapters_apart`` as in ``Capabilities``.

    ``continuous`` (Orca, OSDI 2022) fills every slot as soon as it is free. The others exist for
    comparison: ``static`` forms a batch when the last one has ended whole, ``bucketed`` does so
    with prompts of about one length (a power of two), ``sequential`` runs one request at a time.
    """
    if not free or not waiting:
        return []
    if settings.strategy == "continuous":
        apart = adapters_apart and any(one.request.adapter for one in waiting)
        return in_company(waiting, running, free, settings.aging_s) if apart else waiting[:free]
    if running:
        # Further samples of a running request belong to its batch.
        company = {sequence.request.id for sequence in running}
        return [one for one in waiting if one.request.id in company][:free]
    head = waiting[0]
    if settings.strategy == "sequential":
        return [head]
    waited = now - head.state.submitted
    if len(waiting) < free and waited < settings.batch_timeout_s:
        return []
    if settings.strategy == "bucketed":
        bucket = len(head.prompt).bit_length()
        waiting = [one for one in waiting if len(one.prompt).bit_length() == bucket]
    return waiting[:free]


def in_company(
    waiting: list[Sequence], running: Iterable[Sequence], free: int, aging_s: float
) -> list[Sequence]:
    """At most ``free`` of the waiting, those of adapters that run before others: a step with fewer
    adapters makes fewer passes. None is overtaken by what came an aging later, or is less urgent.
    """
    used = {one.request.adapter for one in running}
    left, chosen = list(waiting), list[Sequence]()
    while left and len(chosen) < free:
        chosen.append(_in_company(left, used, left[0].state.key + aging_s))
        left.remove(chosen[-1])
        used.add(chosen[-1].request.adapter)
    return chosen


def _in_company(waiting: list[Sequence], used: set[str | None], latest: float) -> Sequence:
    urgent = Priority.LOW
    for one in waiting:
        urgent = min(urgent, one.request.priority)
        if one.state.key > latest:
            break
        if one.request.adapter in used and one.request.priority == urgent:
            return one
    return waiting[0]


def preemptible(head: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
    """List the sequences that may lose their slots to the head of the queue, the first to go last.

    The head must be of a higher priority and come first in the aged order: a sequence that has
    waited long enough is not sent back for newcomers. Nothing brings a shifted one back.
    """
    priority, key = head.request.priority, head.state.key
    victims = [
        one
        for one in running
        if one.request.priority > priority and one.state.key > key and not one.dropped
    ]
    return sorted(victims, key=lambda one: (one.request.priority, one.rank()))


def prefill_budget(
    settings: SchedulerSettings, *, batch: int, rate: float | None, stalled: float, decoding: bool
) -> int:
    """How many prompt tokens may go in now, at ``rate`` tokens a second (None: not known yet).

    ``stalled`` is for how long prefill has kept ``decoding`` sequences waiting.
    """
    seconds = settings.longest_step_s
    if decoding and settings.max_stall_s is not None:
        seconds = min(settings.max_stall_s - stalled, seconds)
        if seconds <= 0 and stalled:
            return 0
        if rate is None:
            return min(batch, LEAST_CHUNK)
    chunk = _FIRST_CHUNK if rate is None else int(seconds * rate)
    return min(batch, max(LEAST_CHUNK, chunk))
