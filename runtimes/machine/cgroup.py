"""Limits of Linux' control groups, versions 1 and 2, for this process. Standard library only.

Files: Documentation/admin-guide/cgroup-v2.rst, and cgroup-v1/memory.rst beside it; a quota of
version 1: Documentation/scheduler/sched-bwc.rst.
"""

from pathlib import Path, PurePosixPath

ROOT = Path("/")


def groups(controller: str) -> list[Path]:
    """Folders of the groups that this process is in, its own before those around it; version 2's
    ``controller`` is "".

    Within a container its own group is the top one, whatever /proc says of it.
    """
    for line in kernel_text(ROOT / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            own = PurePosixPath(path.lstrip("/"))
            top = ROOT / "sys/fs/cgroup" / controller
            return [top / group for group in (own, *own.parents)]
    return []


def processors() -> float | None:
    """How many processors' time the process may use; None without a quota."""
    quotas = [kernel_text(group / "cpu.max").partition(" ")[::2] for group in groups("")]
    for group in groups("cpu"):
        quota, period = (kernel_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        quotas.append((quota, period))
    found = [int(quota) / int(period) for quota, period in quotas if _positive(quota, period)]
    return min(found, default=None)


def memory() -> list[tuple[int, int]]:
    """List the limit of each group that has one, and how much of it is free, in bytes.

    Pages of files count as used, but the kernel takes them back as it does on the whole machine.
    """
    found = []
    for controller, most, used, prefix in (
        ("", "memory.max", "memory.current", ""),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        for group in groups(controller):
            limit, usage = kernel_text(group / most), kernel_text(group / used)
            if _positive(limit) and usage.isdigit():
                left = int(limit) - int(usage) + _file_pages(group, prefix)
                found.append((int(limit), min(max(left, 0), int(limit))))
    return found


def _file_pages(group: Path, prefix: str) -> int:
    wanted = {f"{prefix}active_file", f"{prefix}inactive_file"}
    pairs = (line.split(" ") for line in kernel_text(group / "memory.stat").splitlines())
    return sum(int(pair[1]) for pair in pairs if pair[0] in wanted)


def _positive(*numbers: str) -> bool:
    return all(number.isdigit() and int(number) > 0 for number in numbers)


def kernel_text(path: Path) -> str:
    """Read a small file of the kernel; empty where there is none, or none that is text."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
