"""`ingot doctor` for people: a table on a terminal, plain lines elsewhere."""

from app.doctor.report import Report
from runtimes.load import backend
from runtimes.machine.selftest import Health

_GIB = 2**30


def rows(report: Report) -> list[tuple[str, str]]:
    """What to show, as (name, finding)."""
    hardware = report.hardware
    cores = f"{hardware.physical_cores} cores, {hardware.logical_cores} threads"
    if hardware.usable_cores < hardware.logical_cores:
        cores += f", {hardware.usable_cores} usable here"
    ram = f"{hardware.ram_available / _GIB:.1f} of {hardware.ram_total / _GIB:.1f} GiB free"
    found = [
        ("processor", hardware.cpu),
        ("cores", cores),
        ("instruction sets", " ".join(hardware.instruction_sets) or "none that matter here"),
        ("memory", ram),
        ("memory bandwidth", f"{report.bandwidth / 1e9:.1f} GB/s read, measured now"),
    ]
    for gpu in hardware.gpus:
        memory = f"{gpu.memory_free / _GIB:.1f} of {gpu.memory_total / _GIB:.1f} GiB free"
        driver = f"compute {gpu.compute_capability}, driver {gpu.driver}"
        found.append((f"GPU {gpu.index}", f"{gpu.name}, {memory}, {driver}"))
    if not hardware.gpus:
        found.append(("GPU", "none found"))
    for health in report.runtimes:
        label = backend(health.runtime).label
        found.append((label, _describe(health)))
        if health.kernels:
            found.append((f"{label} kernels", " ".join(health.kernels)))
    for line in report.bounds:
        found.append(("after a crash", f"{line}; undo: python -m runtimes.worker --forget"))
    found.append(("libraries", ", ".join(f"{n} {v}" for n, v in report.libraries.items())))
    return found


def _describe(health: Health) -> str:
    if health.version is None:
        return "not installed"
    if not health.usable:
        return f"{health.version}, {'not tested' if health.transient else 'self-test failed'}"
    text = f"{health.version}, self-test passed"
    if "extra_buffers" in backend(health.runtime).knows:
        text += f", repacked weights {'on' if health.extra_buffers else 'off (slower)'}"
    return text


def show(report: Report) -> None:
    """Print to stdout."""
    import sys

    problems = [("problem", text) for text in report.problems]
    lines = rows(report)
    if not sys.stdout.isatty():
        width = max(len(name) for name, _ in lines)
        for name, finding in lines + problems:
            sys.stdout.write(f"{name:<{width}}  {finding}\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, finding in lines:
        table.add_row(name, Text(finding))
    for name, problem in problems:
        table.add_row(name, Text(problem, style="yellow"), style="yellow")
    Console().print(table)
