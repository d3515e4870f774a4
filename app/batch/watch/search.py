"""Words looked for in the answers and errors of a job."""

import threading

from app.batch.watch.follow import FileTail, FollowedJournal
from app.openai.answer import Answer


class RowSearch:
    """``found`` grows while ``read`` goes through the journal, which may still be written to. May
    be called from any thread."""

    def __init__(self, journal: FollowedJournal, text: str) -> None:
        self.words = text.casefold().split()
        self.found: set[int] = set()
        self._journal = journal
        self._tail = FileTail(journal.path)
        self._lock = threading.Lock()

    def read(self) -> bool:
        """Look at the next lines, for some milliseconds; True when there are more."""
        with self._lock:
            return self._read()

    def _read(self) -> bool:
        anew, lines = self._tail.read()
        if anew:
            self.found.clear()
        for offset, line in lines:
            record = self._journal.again(offset, line)
            if record is None or "ingot" in record:
                continue
            text = text_of(Answer.from_json(record["answer"])).casefold()
            if all(word in text for word in self.words):
                self.found.add(record["index"])
            else:
                self.found.discard(record["index"])
        return self._tail.behind > 0 and bool(lines)


def text_of(answer: Answer) -> str:
    """What one reads of a row in a list: its answer, or why it has none."""
    if answer.error is not None:
        return f"{answer.error.code}: {answer.error.message}"
    return answer.response or ""
