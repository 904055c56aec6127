"""`nnhal trace`: summarises traces."""

from pathlib import Path

import click

from nnhal.base.brief import duration
from nnhal.base.records import as_dict
from nnhal.base.time import NS
from nnhal.cli import common
from nnhal.runtime.tracing.perfetto import read
from nnhal.runtime.tracing.summary import TimeOf, TraceSummary, summary


@click.group("trace")
def command() -> None:
    """Show where time went in a trace.

    `run --trace`, `bench --trace`, NNHAL_TRACE and `nnhal.trace` write traces. Each command has --json.
    """


@command.command("summary")
@click.argument("file", type=click.Path(path_type=Path))
@common.json_option
def show_summary(file: Path, as_json: bool) -> None:
    """Summarise a trace by layer, phase and device.

    Each moment of a thread counts once.
    """
    found = summary(read(common.read_ordinary_file(file, "trace"), f"trace {file}"))
    if as_json:
        document = as_dict(found)
        document["errors"] = [{"error": error, "spans": spans} for error, spans in found.errors]
        common.print_json({"trace": str(file), **document})
    else:
        _print(found)


def _print(found: TraceSummary) -> None:
    total = sum(row.self_ns for row in found.rows)
    columns = ["layer", "phase", "device", ">spans", ">threads", ">self time", ">share", ">wall time", ">errors"]
    common.table(columns, [_cells(row, total) for row in found.rows])
    for process in found.processes:
        memory = "" if process.memory is None else f", {common.size(process.memory)} at most"
        threads = f"{process.spans} spans on {process.threads} threads"
        common.console.print(f"process {process.pid} {process.name}: {threads}{memory}", markup=False)
    common.console.print(f"{duration(found.duration_ns / NS)} in all", markup=False)
    for error, count in found.errors:
        common.console.print(f"error  {count} times: {error}", markup=False)
    what = {"spans had not ended": found.unfinished, "processes died": found.deaths}
    for words, count in what.items():
        if count:
            common.console.print(f"{count} {words}", markup=False)
    for note in found.notes:
        common.console.print(f"note   {note}", markup=False)


def _cells(row: TimeOf, total: int) -> list[object]:
    times = duration(row.self_ns / NS), f"{row.self_ns / max(total, 1):.1%}", duration(row.wall_ns / NS)
    return [row.layer, row.phase, row.device, row.spans, row.threads, *times, row.errors or ""]
