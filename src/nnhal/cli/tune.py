"""`nnhal tune`: measures candidate placements of a model; later compilations use the fastest."""

import os
from typing import Any

import click

from nnhal import api
from nnhal.base.brief import duration
from nnhal.base.columns import columns, fixed, section, wrap_text
from nnhal.base.errors import InvalidArgument, OperationFailed
from nnhal.cli import common
from nnhal.cli.bench import warn_if_disturbed
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.model_text import shown_name
from nnhal.runtime.measured import record
from nnhal.runtime.measured.background_write import wait_for_writes
from nnhal.runtime.partition import Expectation
from nnhal.runtime.placement import Placement
from nnhal.runtime.tuning import SECONDS

SAVING = 20.0  # seconds to wait for another process that has the record


@nnhal_command("tune")
@common.model_options
@click.option(
    "--duration",
    type=common.DurationType(0, min_open=True),
    default=SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Measure for so long, beside compilations.",
)
@common.rule_option
@common.fallback_option
@common.threads_option
@common.isolate_option
@common.numerics_option
@common.option_option
@common.device_option
@common.driver_option
@common.verbose_option
@common.json_option
def command(model: str, duration: float, as_json: bool, **options: Any) -> None:
    """Measure placements of a model, and remember the fastest.

    Later compilations of the model with the same threads, rules and options, on these devices or some of them, use the
    fastest placement. `nnhal calibrate --forget` deletes what was measured.
    """
    record.require_writable()
    warn_if_disturbed(os.getloadavg()[0])
    names = common.load_drivers(options["drivers"], options["devices"])
    graph = common.open_model(model, options)
    arguments = common.compile_arguments({**options, "strategy": None, "tune": duration}, names)
    with api.compile(graph, devices=names, cache_dir=False, **arguments) as compiled:
        placement = compiled.placement
    measured = [each for each in placement.expected if each.known]
    if not measured:
        raise InvalidArgument(f"{shown_name(model)}: no placement could be measured: nnhal show {model} --placement")
    wait_for_writes(SAVING)
    with api.compile(graph, devices=names, cache_dir=False, **{**arguments, "tune": False}) as again:
        if not again.placement.expected or not again.placement.expected[0].known:
            raise OperationFailed("the measured times are not recorded; the warning above has the reason")
    if as_json:
        common.print_json(
            {
                "model": model,
                "placement": placement.summary(),
                "measured": [
                    {"devices": _devices(each), "partitions": len(each.forecasts), "seconds": each.latency}
                    for each in measured
                ],
                "events": list(placement.events),
            }
        )
        return
    common.show(_sections(shown_name(model), placement, measured), verbose=options["verbose"])


def _devices(each: Expectation) -> list[str]:
    return list(dict.fromkeys(filter(None, each.devices)))


def _sections(name: str, placement: Placement, measured: list[Expectation]) -> list[Any]:
    best = measured[0]
    rows = [
        [" + ".join(_devices(each)), len(each.forecasts), duration(each.latency), f"{each.latency / best.latency:.2f}"]
        for each in measured
    ]
    notes = [line for each in placement.events for line in wrap_text(each, most=3, indent="  ")]
    return [
        fixed(f"{name}: {placement.summary()}, {duration(best.latency)} (fastest of {len(measured)} measured)"),
        section([], columns(["Devices", ">partitions", ">latency", ">ratio"], rows), "placements"),
        section([], notes, "notes"),
        fixed(
            "Used by compilations for these devices, with the same threads, options and rules.",
            "Delete: nnhal calibrate --forget",
        ),
    ]
