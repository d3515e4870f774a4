"""`ingot doctor`: what this machine has, and whether the runtimes and the model files are sound."""

from pathlib import Path

import typer

from app.cli.options import AS_TABLE, with_groups
from app.console import emit, emit_json, note
from app.exitcodes import ExitCode
from app.options import argument, option


@with_groups
def doctor(
    models: list[str] | None = argument(
        "With --verify: models to run instead of the demo model. With --checksums: a folder that"
        " quantize wrote, or a pulled model (default: all).",
        None,
        metavar="[MODEL]...",
    ),
    verify: bool = option(
        False,
        "Run every runtime on every device: answers, memory, speed, the planner's choice, restarts."
        " Writes a report to send.",
    ),
    out: Path = option(Path(), "With --verify: the folder of the report.", metavar="DIR"),
    minutes: float = option(10.0, "With --verify: what does not fit is skipped.", min=0),
    checksums: bool = option(False, "Compare every file of MODEL with its checksum instead."),
    as_json: bool = AS_TABLE,
) -> None:
    """Show the hardware, the libraries, and whether the runtimes pass their self-tests."""
    from runtimes.errors import RequestError

    asked = models or []
    if verify and checksums:
        raise RequestError("--verify compares checksums too; give one of --verify and --checksums")
    if verify:
        _verify(asked, out, minutes, as_json=as_json)
        return
    if checksums:
        if len(asked) > 1:
            raise RequestError("--checksums takes one MODEL")
        _checksums(asked[0] if asked else None, as_json=as_json)
        return
    if asked:
        raise RequestError(
            f"to run {asked[0]}, add --verify; to compare its files with their checksums,"
            " --checksums"
        )
    from app.doctor.report import examine, show
    from runtimes.errors import RuntimeMissingError

    report = examine()
    if as_json:
        emit_json(report.as_json(), indent=1)
    else:
        show(report)
    if not report.usable:
        raise RuntimeMissingError("no runtime works here; " + "; ".join(report.problems))


def _verify(models: list[str], out: Path, minutes: float, *, as_json: bool) -> None:
    """A line for each check; exits with 1 when any has failed, 130 when interrupted."""
    from app.doctor.checks import counts
    from app.doctor.verify import ReportFiles, Verification, shown, verify
    from app.doctor.verify import as_json as to_json

    with shown(silent=as_json) as (begins, show):

        def ends(run: Verification) -> None:
            show(run.lines[-1])
            files.write(run)

        run = Verification(minutes, begins, ends, models)
        files = ReportFiles(out, f"{run.began:%Y-%m-%d}")
        verify(run)
        files.write(run)  # it may have been interrupted after the last line
    if as_json:
        emit_json(to_json(run), indent=1)
    found = counts(run.lines)
    note(", ".join(f"{count} {name}" for name, count in found.items()))
    note(f"to send: {files.markdown} and {files.json}")
    if run.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if found["failed"]:
        raise typer.Exit(ExitCode.ROWS_FAILED)


def _checksums(model: str | None, *, as_json: bool) -> None:
    """A line for each file as soon as it has been read. Raises ModelError when any is damaged."""
    from app.doctor.report import check_files
    from runtimes.errors import ModelError

    rows, damaged = [], 0
    for file in check_files(model):
        row = {"path": str(file.path), "bytes": file.bytes, "problem": file.problem or None}
        rows.append(row)
        damaged += bool(file.problem)
        if not as_json:
            state = "damaged" if file.problem else "ok"
            emit(f"{state:<8}  {file.path}  {file.problem}".rstrip() + "\n")
    if as_json:
        emit_json({"files": rows, "damaged": damaged}, indent=1)
    if damaged:
        raise ModelError(
            f"{damaged} of {len(rows)} files are damaged: `ingot pull` or `quantize` again"
            " brings these back"
        )
