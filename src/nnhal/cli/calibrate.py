"""`nnhal calibrate`: measures the devices on this machine; shows, exports, imports and deletes the profile."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nnhal.base.brief import duration, with_count
from nnhal.base.disturbed import NOTICED, probed
from nnhal.base.errors import InvalidArgument, OperationFailed
from nnhal.bench.calibrate import CPU, Calibration, predictions
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.judged import shown_progress
from nnhal.cli.main import ANSWER_NO
from nnhal.runtime import discovery
from nnhal.runtime.measured import record
from nnhal.runtime.measured.families import OperationWork
from nnhal.runtime.measured.profile import DeviceProfile, MachineProfile, decoded, encoded


@nnhal_command("calibrate")
@common.driver_option
@click.option(
    "--device", "-d", "named", multiple=True, metavar="NAME", help="Measure only this device; may be repeated."
)
@click.option("--quick", is_flag=True, help="Measure fewer sizes, types and networks, and no isolated processes.")
@click.option("--busy", is_flag=True, help="Measure although the machine is busy.")
@click.option("--show", is_flag=True, help="Show the profile and measure nothing.")
@click.option("--export", "target", metavar="FILE", help="Write the profile to a file and measure nothing.")
@click.option("--import", "source", metavar="FILE", help="Import a profile and pin it.")
@click.option("--forget", is_flag=True, help="Delete the profile, tuned times and known failures.")
@common.json_option
def command(
    drivers: tuple[str, ...],
    named: tuple[str, ...],
    quick: bool,
    busy: bool,
    show: bool,
    target: str | None,
    source: str | None,
    forget: bool,
    as_json: bool,
) -> None:
    """Measure the speed of each device on this machine.

    nnhal then places models by the measured profile. First it verifies fast kernels, as `nnhal verify --only-new` does.
    Then it measures, for each device, chains of operations of every family, whole networks, the cost of a partition, and
    transfers between devices. The machine should have no other work.
    """
    asked = sum([show, target is not None, source is not None, forget])
    if asked > 1 or (asked and (named or quick or busy)):
        raise click.UsageError("one of --show, --export, --import and --forget, without devices, --quick and --busy")
    if forget and as_json:
        raise click.UsageError("--json is for a profile, of which --forget leaves none")
    if forget:
        record.forget()
        common.status.print("deleted the profile, tuned times and known failures")
        return
    if source is not None:
        given = decoded(common.read_ordinary_file(Path(source), "profile"), source)
        known = MachineProfile(given.processor, given.made, given.devices, given.crossings, pinned=True)
        record.keep_profile(known)
        common.status.print(f"imported the profile {source}; nnhal places by it until you run nnhal calibrate")
    elif show or target is not None:
        found = record.profile()
        if found is None:
            raise InvalidArgument("there is no profile of this processor: nnhal calibrate measures one")
        known = found
        if target is not None:
            common.write(Path(target), encoded(known))
    else:
        known = _measured(drivers, named, quick, as_json, busy=busy)
    if as_json:
        common.print_json(_document(known))
    elif source is None and target is None:
        _print(known)


def _measured(
    drivers: tuple[str, ...], named: tuple[str, ...], quick: bool, as_json: bool, *, busy: bool
) -> MachineProfile:
    waiting = 0.0 if busy else probed()
    if waiting > NOTICED:
        raise OperationFailed(f"the machine is busy: nnhal waits for a core {waiting:.0%} of the time; {OTHERWISE}")
    _prove(drivers, named, as_json)
    common.load_drivers(drivers, ())
    there = [entry.name for entry in discovery.found_with_engines() if entry.device is not None]
    devices = [discovery.load_one(name).name for name in named] or there
    if CPU not in devices and ((old := record.profile()) is None or CPU not in old.devices):
        devices.append(CPU)  # the others are compared with it
    before = record.profile() if named else None
    crossed = [name for name in there if before is not None and name in before.devices]
    calibration = Calibration(devices, quick=quick, isolated=not quick, crossed=crossed)
    with shown_progress("calibrating", as_json) as show:
        tasks = calibration.tasks()
        for done, (text, measure) in enumerate(tasks):
            show(done, len(tasks), text, "")
            measure()
    for name, failed in calibration.failed.items():
        common.warn(f"device {name} failed at {with_count(len(failed), 'measurement')}; the first was {failed[0]}")
    # Others may have measured their devices in the meantime
    profile = calibration.result(int(time.time()), record.profile() if named else None)
    if calibration.disturbed > NOTICED and not busy:
        why = f"the machine became busy: {calibration.disturbed:.0%} of the measurements had to wait for a core"
        raise OperationFailed(f"{why}; {_beside(profile)}; {OTHERWISE}")
    try:
        record.keep_profile(profile)
    except OperationFailed as error:
        raise OperationFailed(f"{error}; {_beside(profile)}") from None
    return profile


OTHERWISE = "must have nothing else to do, or --busy"


def _beside(profile: MachineProfile) -> str:
    """Writes the profile to a temporary file; returns a text on how to use it."""
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(prefix="nnhal-profile-", suffix=".json", delete=False) as file:
            file.write(encoded(profile))
    except OSError as error:
        return f"the new profile cannot be written to a temporary file either: {error}"
    return f"the new profile is in {file.name}: nnhal calibrate --import {file.name} imports it"


def _prove(drivers: Sequence[str], named: Sequence[str], quiet: bool) -> None:
    """Verifies new kernel variants in separate processes: a device reads the results when it is loaded."""
    installed = [name for name in named if name in discovery.names()]
    every: list[Sequence[str]] = [()] if not named else []
    for devices in (*every, *filter(None, (installed, drivers))):
        command = [
            sys.executable,
            "-m",
            "nnhal.cli.main",
            "verify",
            "--only-new",
            *(["--json"] if quiet else []),
            *devices,
        ]
        code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
        if code not in (0, ANSWER_NO):  # it has printed the error
            raise click.exceptions.Exit(code)


def _print(profile: MachineProfile) -> None:
    pinned = ", imported" if profile.pinned else ""
    common.console.print(f"measured {time.strftime('%Y-%m-%d %H:%M', time.localtime(profile.made))}{pinned}")
    cpu = profile.devices.get(CPU)
    rows = []
    for name, device in profile.devices.items():
        against = {} if cpu is None else device.against(cpu)
        cells = [f"{a.exec_time:.2g} / {a.power_usage:.2g}" if (a := against.get(k)) else "-" for k in SHOWN]
        steps = " / ".join(duration(seconds) for seconds in device.steps.values())
        rows.append([name, device.version, steps, *cells])
    common.table(["device", "version", "partition / isolated", *SHOWN], rows)
    common.console.print(
        "Execution time / processor time of whole networks against the CPU reference, less is better.\n"
    )
    families = sorted(
        {(kind, family) for d in profile.devices.values() for kind, of in d.lines.items() for family in of}
    )
    table = [
        [family, kind, *(_rate(family, kind, device) for device in profile.devices.values())]
        for kind, family in families
    ]
    common.table(
        ["family", "type", *profile.devices], table, title="an operation of 10 million multiplications on 1 MB"
    )
    checks = [
        [name, network, duration(seconds), duration(took), f"{seconds / took:.2f}"]
        for name, device in profile.devices.items()
        for network, seconds, took in predictions(device)
    ]
    title = "whole networks, each predicted without its own measurement"
    common.table(["device", "network", "predicted", "took", "ratio"], checks, title=title)
    crossings = [
        [pair, place, duration(c.fixed), duration(c.byte * 1e6)]
        for pair, places in profile.crossings.items()
        for place, c in places.items()
    ]
    if crossings:
        common.table(["from > to", "isolation", "transfer", "more for 1 MB"], crossings, title="device transfers")


SHOWN = "float32", "quant8", "quant8_signed", "if", "while"


def _rate(family: str, kind: str, device: DeviceProfile) -> str:
    line = device.lines.get(kind, {}).get(family)
    return "-" if line is None else duration(line.seconds(OperationWork(family, kind, 10**7, 10**6)))


def _document(profile: MachineProfile) -> dict[str, Any]:
    import json

    cpu = profile.devices.get(CPU)
    document: dict[str, Any] = json.loads(encoded(profile))
    for name, device in profile.devices.items():
        against = {} if cpu is None else device.against(cpu)
        document["devices"][name]["capabilities"] = {
            kind: {"exec_time": p.exec_time, "power_usage": p.power_usage} for kind, p in against.items()
        }
        document["devices"][name]["checks"] = {n: {"predicted": p, "took": t} for n, p, t in predictions(device)}
    return document
