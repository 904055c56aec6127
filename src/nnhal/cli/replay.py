"""`nnhal replay`: executes a captured HAL session again and compares the outcomes; lists what a capture has."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import msgspec

from nnhal.base.brief import duration, with_count
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import BadFile, InvalidArgument, bounded_text
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.judged import reasons_alone, timeout_option
from nnhal.cli.main import ANSWER_NO
from nnhal.conformance.replay import FAILED, HUNG, PASSED, VERDICTS, ReplayedPart, ReplayOptions, replay, title_of
from nnhal.model.file import write_model
from nnhal.runtime.capturing.reader import CaptureReader, PreparedPart

COMMAND = 200  # characters of the captured command
NO_REQUEST = "the capture has no request of a model that was prepared"
MOST_REASONS = 3  # failed requests of a model that are named without --verbose


@nnhal_command("replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--list", "as_list", is_flag=True, help="List what the capture has, and replay nothing.")
@click.option("--device", "-d", default="", metavar="NAME", help="Replay on this device (default: the captured ones).")
@common.driver_option
@common.extensions_option
@click.option("--isolate", is_flag=True, help="Isolate the driver (default: as captured).")
@timeout_option("Time until a preparation or a request counts as hung.")
@click.option("--rtol", type=float, metavar="X", help="Relative tolerance, in place of the operations'.")
@click.option("--atol", type=float, metavar="X", help="Absolute tolerance, in place of the operations'.")
@click.option(
    "--filter", "pattern", default="", metavar="REGEX", help='Replay models whose title ("0 NAME on DEVICE") matches.'
)
@click.option("--model", type=click.IntRange(0), metavar="N", help="Write model N to --output, and replay nothing.")
@click.option("--output", "-o", type=common.Writable(), metavar="FILE", help="File for --model, in nnhal's format.")
@common.verbose_option
@common.json_option
def command(
    file: Path,
    as_list: bool,
    extensions: Sequence[str],
    model: int | None,
    output: Path | None,
    verbose: bool,
    as_json: bool,
    **more: Any,
) -> int:
    """Replay a capture of `nnhal capture` on a device.

    nnhal prepares each captured model, executes each request in the captured way, and compares the outcomes with the
    captured ones. The exit code is 1 if one differs or hangs, or if none was compared.
    """
    if (model is None) != (output is None):
        raise click.UsageError("--model N and --output FILE: must be given together")
    with closing(CaptureReader(file)) as capture:
        if model is not None and output is not None:
            return _extract(capture, model, output, as_json)
        if as_list:
            return _list(capture, verbose=verbose, as_json=as_json)
        options = ReplayOptions(extensions=tuple(extensions), **more)
        return _replay(capture, options, verbose=verbose, as_json=as_json)


def _extract(capture: CaptureReader, number: int, output: Path, as_json: bool) -> int:
    found = capture.model(number)
    write_model(found, output)
    if as_json:
        common.print_json({"model": number, "operations": len(found.main.operations), "file": str(output)})
    else:
        common.print_progress(f"wrote {output}: {with_count(len(found.main.operations), 'operation')}")
    return 0


# ---------------------------------------------------------------------------------------------------------------- replay


def _replay(capture: CaptureReader, options: ReplayOptions, *, verbose: bool, as_json: bool) -> int:
    if not any(part for part in capture.parts.values()):
        raise BadFile(f"capture {capture.path}: no device was given a model in it, must be at least one")
    found: list[ReplayedPart] = []
    with reasons_alone(), common.progress(as_json) as bar:
        chosen = [part for part in capture.parts.values() if options.takes(title_of(capture, part))]
        task = bar.add_task("requests replayed", total=sum(len(part.requests) for part in chosen))
        found += replay(capture, options, lambda: bar.update(task, advance=1))
    if not found:
        titles = ", ".join(title_of(capture, part) for part in list(capture.parts.values())[:5])
        raise InvalidArgument(f"filter is {options.pattern!r}, must match one of {titles}")
    if as_json:
        common.print_json(
            {
                "file": str(capture.path),
                "notes": capture.notes,
                "models": [_part_document(part) for part in found],
                "totals": {verdict: sum(part.verdict == verdict for part in found) for verdict in VERDICTS},
            }
        )
    else:
        _print(capture, found, verbose)
    verdicts = Counter(part.verdict for part in found)
    bad = verdicts[FAILED] + verdicts[HUNG]
    if not verdicts[PASSED] and not bad:
        counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        why = next((part.reason for part in found if part.reason), NO_REQUEST)
        common.warn(f"no result was compared ({with_count(len(found), 'model')}: {counted}): {why}")
    return ANSWER_NO if bad or not verdicts[PASSED] else 0


def _part_document(part: ReplayedPart) -> dict[str, Any]:
    facts = {name: getattr(part, name) for name in ("model", "title", "device", "operations", "verdict", "reason")}
    times = {"worst": part.worst, "captured_p50_ns": part.captured_ns, "replay_p50_ns": part.nanoseconds}
    return {**facts, **times, "requests": [msgspec.structs.asdict(request) for request in part.requests]}


def _print(capture: CaptureReader, found: Sequence[ReplayedPart], verbose: bool) -> None:
    columns = (
        "model",
        "device",
        ">ops",
        ">requests",
        "result",
        ">worst difference",
        ">captured p50",
        ">replay p50",
    )
    common.table(
        columns,
        [
            [
                part.title,
                part.device,
                part.operations,
                len(part.requests),
                "HANG" if part.verdict == HUNG else part.verdict.upper(),
                "" if part.worst is None else f"{part.worst:.3g}",
                _time(part.captured_ns),
                _time(part.nanoseconds),
            ]
            for part in found
        ],
    )
    for part in found:
        for line in _reasons(part, verbose=verbose):
            common.console.print(line)
    for note in capture.notes:
        common.status.print(f"note: {note}")


def _reasons(part: ReplayedPart, *, verbose: bool) -> list[str]:
    where = f"{part.title} on {part.device}"
    failed = [
        f"{where}, request {r.number} ({r.way}): {r.reason}" for r in part.requests if r.verdict in (FAILED, HUNG)
    ]
    left = [] if verbose else failed[MOST_REASONS:]
    lines = failed[: len(failed) - len(left)] + (
        [f"{where}: {len(left)} more failed; --verbose lists them"] if left else []
    )
    if not failed and part.reason:
        lines.append(f"{where}: {part.reason}")
    return lines


def _time(nanoseconds: int | None) -> str:
    return "" if nanoseconds is None else duration(nanoseconds / 1e9)


# ------------------------------------------------------------------------------------------------------------------ list


def _list(capture: CaptureReader, *, verbose: bool, as_json: bool) -> int:
    if as_json:
        common.print_json(_document(capture))
        return 0
    head = capture.head
    common.console.print(f"{capture.path}: {bounded_text(' '.join(' '.join(head.command).split()), COMMAND)}")
    common.console.print(f"  process {head.pid}, {head.started}, {head.system}, nnhal {head.nnhal}")
    common.table(
        ["#", "model", ">ops", "prepared on", "isolation", ">prepare", ">requests", "ways", "outcome"],
        [_row(capture, part) for part in capture.parts.values()],
    )
    whole = {c.model for c in capture.compilations.values()} - {p.given.model for p in capture.parts.values()}
    for number in sorted(whole):
        each = capture.models[number]
        common.console.print(f"whole: {number} {each.name or 'model'}, {with_count(len(each.operations), 'operation')}")
    for number, placement in enumerate(capture.placements):
        for line in _placement_lines(number, placement.placement, verbose):
            common.console.print(line)
    for note in capture.notes:
        common.status.print(f"note: {note}")
    return 0


def _row(capture: CaptureReader, part: PreparedPart) -> list[Any]:
    given, end, model = part.given, part.end, capture.models[part.given.model]
    ways = Counter(request.given.way for request in part.requests)
    spent = _time(None if end is None else end.nanoseconds)
    return [
        given.number,
        f"{model.number} {model.name or 'model'}",
        len(model.operations),
        f"{given.device} {given.version}",
        given.where.get("isolation", ""),
        spent,
        len(part.requests),
        ", ".join(f"{count} {way}" for way, count in ways.items()),
        _outcome(part),
    ]


def _outcome(part: PreparedPart) -> str:
    if part.end is None:
        return "preparation did not end"
    if part.end.status:
        return f"preparation: {_status(part.end.status)}: {part.end.error}"
    bad = Counter("did not end" if r.end is None else _status(r.end.status) for r in part.requests)
    bad.pop(ErrorStatus.NONE.name, None)
    return ", ".join(f"{count} {what}" for what, count in bad.items()) or "ok"


def _status(number: int) -> str:
    try:
        return ErrorStatus(number).name
    except ValueError:
        return f"status {number}"


def _placement_lines(number: int, data: bytes, verbose: bool) -> list[str]:
    placed = _decoded(data)
    steps = [f"{len(step['operations'])} on {step['device']}" for step in placed.get("steps", ())]
    lines = [f"placement {number}: {with_count(len(steps), 'partition')}: {', '.join(steps)}"]
    lines += [f"  {event}" for event in placed.get("events", ())]
    for each in placed.get("operations", ()) if verbose else ():
        others = "".join(f"; not {label}: {why}" for label, why in each["others"].items() if why)
        lines.append(f"  {each['operation']} on {each['device']}: {each['reason']}{others}")
    return lines


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadFile(f"capture: a placement cannot be read: {error}") from None
    return found


def _document(capture: CaptureReader) -> dict[str, Any]:
    head = capture.head
    return {
        "file": str(capture.path),
        "nnhal": head.nnhal,
        "command": list(head.command),
        "pid": head.pid,
        "started": head.started,
        "system": head.system,
        "complete": capture.complete,
        "notes": capture.notes,
        "models": [
            {"model": each.number, "name": each.name, "operations": list(each.operations), "lacks": each.lacks}
            for each in capture.models.values()
        ],
        "prepared": [_prepared_document(part) for part in capture.parts.values()],
        "placements": [
            {"compilation": each.compilation, "prepared": list(each.parts), "placement": _decoded(each.placement)}
            for each in capture.placements
        ],
    }


def _prepared_document(part: PreparedPart) -> dict[str, Any]:
    given, end = part.given, part.end
    facts = {
        name: getattr(given, name)
        for name in (
            *("number", "compilation", "model", "device", "version", "level", "where", "preference"),
            *("priority", "threads", "deadline", "options", "lacks"),
        )
    }
    ends = {"status": None, "error": "", "prepare_ns": None, "cached": ""}
    if end is not None:
        ends = {"status": _status(end.status), "error": end.error, "prepare_ns": end.nanoseconds, "cached": end.cached}  # type: ignore[dict-item]
    return {
        **facts,
        **ends,
        "requests": [
            {
                "number": r.given.number,
                "way": r.given.way,
                "inputs": [None if x is None else _array_document(x) for x in r.given.inputs],
                "outputs": [None if x is None else _array_document(x) for x in (r.end.outputs if r.end else ())],
                "status": _status(r.end.status) if r.end else None,
                "error": r.end.error if r.end else "",
                "time_ns": r.end.nanoseconds if r.end else None,
                "on_device_ns": r.end.on_device if r.end else None,
                "in_driver_ns": r.end.in_driver if r.end else None,
            }
            for r in part.requests
        ],
    }


def _array_document(array: Any) -> dict[str, Any]:
    return {"type": array.dtype, "shape": list(array.shape), "buffer": array.buffer, "lacks": array.lacks}
