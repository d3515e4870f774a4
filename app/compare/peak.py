"""The most memory that a process has had resident."""

from quantize.quality.peak import peak_resident


class PeakMemory:
    """Look now and then: the kernel keeps the peak (Linux), or the largest size seen counts."""

    def __init__(self) -> None:
        self.bytes: int | None = None

    def look(self, pid: int | None) -> int | None:
        """The peak so far, in bytes; the last one known when the process is gone."""
        if pid is not None:
            self.bytes = max(self.bytes or 0, peak_resident(pid)) or None
        return self.bytes
