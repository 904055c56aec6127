"""`nnhal bench`: latency of load, compile, first run and steady state; throughput; against a peer engine, interleaved."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click

from nnhal import api
from nnhal.base.brief import duration, with_count
from nnhal.base.columns import WIDTH, columns, fixed, shortened
from nnhal.base.cores import usable_cores
from nnhal.base.records import Record
from nnhal.base.time import NS
from nnhal.bench.operations import TimeSpent, each_operation
from nnhal.bench.process_memory import driver_memory, private_bytes
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.inputs import read_inputs
from nnhal.cli.model_text import shown_name
from nnhal.cli.pictures import InputOptions
from nnhal.cli.placement import placement_sections
from nnhal.hal.memory import MemoryUse
from nnhal.measure.latency import Latency, Ratio, histogram, measure_calls, ratio, timed, timed_pairs
from nnhal.measure.peers import PEERS, peer
from nnhal.model.graph import Model
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.placement import Placement

PERCENTILES = 50, 90, 99
PAIRS, BLOCK = 200, 20
EACH_RUNS, PARTITION_RUNS, ROWS, TYPES = 30, 10, 25, 4
BLOCK_NS = 200_000  # calls shorter than this are timed in blocks
CORES = usable_cores()
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
CPUINFO = Path("/proc/cpuinfo")


@nnhal_command("bench", formerly={"--each": "--profile"})
@common.model_options
@common.input_option()
@common.device_option
@common.driver_option
@common.option_option
@common.numerics_option
@common.fallback_option
@common.isolate_option
@common.strategy_options
@common.cache_options
@click.option("--threads", type=click.IntRange(1), default=CORES, show_default=True, help="Threads of the engine.")
@click.option("--vs", "peer_name", type=click.Choice(PEERS), help="Compare with this engine, called directly.")
@click.option("--iterations", type=click.IntRange(1), help="Inferences to measure; with --vs pairs (default: 200).")
@click.option("--warmup", type=click.IntRange(0), default=3, show_default=True, help="Inferences before, not measured.")
@click.option(
    "--duration", type=common.DurationType(0), default=2.0, show_default=True, help="Seconds, without --iterations."
)
@click.option("--streams", type=click.IntRange(1), default=1, show_default=True, help="Inferences in flight at once.")
@click.option("--profile", "each", is_flag=True, help="Show the time of each operation, where drivers report it.")
@click.option("--histogram", is_flag=True, help="Draw the distribution of latencies.")
@click.option(
    "--export-json", "export", type=common.Writable(), metavar="FILE", help="Write the JSON to this file too."
)
@common.seed_option
@common.trace_option
@common.verbose_option
@common.json_option
def command(model: str, files: Sequence[str], peer_name: str | None, streams: int, seed: int, **options: Any) -> None:
    """Measure the latency and throughput of a model.

    docs/how-to/models/benchmark.md defines each figure. The compilation cache is off unless you pass --cache-dir.
    """
    if peer_name is not None and streams > 1:
        raise click.UsageError("--streams with --vs: pairs run one at a time, must be one of the two")
    load_average = os.getloadavg()[0]
    warn_if_disturbed(load_average)
    asked = options["cache_dir"] is not None
    folder = common.cache_folder(options["cache_dir"], options["no_cache"]) if asked else False
    names = common.load_drivers(options["drivers"], options["devices"])
    path, threads = common.contents(model), options["threads"]
    arguments = common.load_arguments(model, options)

    place = common.compile_arguments(options, names)

    def loaded() -> Model:
        return api.load(path, **arguments, cache_dir=False)

    def prepared(graph: Model) -> Compiled:
        return api.compile(graph, devices=names, cache_dir=folder, **place)

    opened = common.open_model(model, options)
    prepared(opened).close()  # the measured memory excludes imports at first use
    before = private_bytes()
    start = time.perf_counter_ns()
    graph = loaded()
    load = time.perf_counter_ns() - start
    start = time.perf_counter_ns()
    compiled = prepared(graph)
    spent = time.perf_counter_ns() - start
    inputs = [g.array for g in read_inputs(compiled.inputs, files, seed, InputOptions(), graph.metadata, graph)]

    def run() -> Any:
        return compiled(*inputs)

    if peer_name is None:
        first = timed(run)
        for _ in range(options["warmup"]):
            run()
        runs, wall = measure_calls(run, options["duration"], options["iterations"] or 0, streams)
        latencies = {"nnhal": Latency(load, spent, first, runs, wall)}
        compared = None
    else:
        latencies, compared = _compare(peer_name, path, inputs, run, (load, spent), options)
        before = None  # the peer's memory cannot be separated from nnhal's
    after = private_bytes()
    memory = {
        **compiled.memory.to_dict(),
        "private_bytes": None if before is None or after is None else after - before,
        "drivers_private_bytes": driver_memory(compiled),
    }
    shares = each_operation(compiled, inputs, options["iterations"] or EACH_RUNS) if options["each"] else None
    document = _document(model, threads, streams, latencies, compared, peer_name) | {
        "memory": memory,
        "cache": [outcome._asdict() for outcome in compiled.cache],
        **({} if shares is None else {"each": _each(shares)}),
    }
    if options["export"]:
        common.write(options["export"], json.dumps(common.plain(document), indent=2).encode())
    if options["as_json"]:
        common.print_json(document)
        return
    setup = Setup(shown_name(model), compiled.placement, threads, streams, options["warmup"], load_average)
    took = _by_partition(compiled, inputs) if options["verbose"] or len(compiled.placement.steps) > 1 else None
    problems = list(common.cache_lines(compiled.cache)) if asked else []
    _print(
        setup, latencies, took, [*_results(compared, peer_name, latencies), *_memory_lines(memory), *problems], options
    )
    extra = [fixed(*_memory_table(memory))] if options["verbose"] else []
    extra += [fixed(*_profile(shares, len(shares) if options["verbose"] else ROWS))] if shares is not None else []
    if extra:
        common.console.print()
        common.show(extra, verbose=True)


def _print(
    setup: "Setup",
    latencies: Mapping[str, Latency],
    took: Sequence[float] | None,
    results: Sequence[str],
    options: Mapping[str, Any],
) -> None:
    """Prints the result.

    Args:
        took: Seconds of each partition, if they are shown.
        results: Lines below the latencies.
    """
    verbose = options["verbose"]
    parts = [
        fixed(*setup.lines(latencies["nnhal"])),
        *([] if took is None else placement_sections(setup.placement, took, verbose=verbose)),
        fixed(*_latencies(latencies, setup.devices)),
        fixed(*results),
        *([fixed(*_histograms(latencies))] if options["histogram"] else []),
    ]
    common.show(parts, verbose=verbose)


class Setup(Record, frozen=True):
    """The configuration and the machine of a measurement."""

    name: str
    placement: Placement
    threads: int
    streams: int
    warmup: int
    load: float

    @property
    def devices(self) -> str:
        """The devices that run the model."""
        return " + ".join(self.placement.devices())

    def lines(self, found: Latency) -> Iterator[str]:
        """Yields the header lines: the result, the configuration and the machine."""
        keys = self.placement.keys
        devices = [f"{label} {keys[label].version}" if label in keys else label for label in self.placement.devices()]
        answer = f"p50 {duration(found.quantile(0.5) / NS)}, {_rounded(found.throughput)} inferences/s"
        yield shortened(f"{self.name} on {' + '.join(devices)}: {answer}", WIDTH)
        words = [
            with_count(self.threads, "thread"),
            with_count(self.streams, "stream"),
            with_count(len(found.runs), "iteration"),
            f"{self.warmup} warm-up",
            with_count(len(self.placement.steps), "partition"),
        ]
        yield f"Setup: {', '.join(words)}"
        yield shortened(f"CPU: {processor_name()}, {with_count(CORES, 'core')}, load average {self.load:.1f}", WIDTH)


def _by_partition(compiled: Compiled, inputs: Sequence[Any]) -> list[float]:
    """Returns the p50 of each partition in seconds, without runs that fell back."""
    reports = [compiled.run(*inputs, measure=True)[1] for _ in range(PARTITION_RUNS)]
    steps = [[step.total for step in report.steps] for report in reports if report is not None and not report.fallbacks]
    return [median(each) / NS for each in zip(*steps, strict=True)]


def processor_name() -> str:
    """Returns the kernel's name of the processor."""
    try:
        text = CPUINFO.read_text("utf-8", "replace")
    except OSError:
        text = ""
    found = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return found[0] if found else os.uname().machine


def governor() -> str:
    """Returns the governor of the processor's frequency; "" without frequency scaling."""
    try:
        return GOVERNOR.read_text().strip()
    except OSError:
        return ""


def warn_if_disturbed(load: float) -> None:
    """Warns if measurements may not be repeatable now. load: the load average of the last minute."""
    for warning in machine_warnings(load, os.cpu_count() or 1, governor()):
        common.warn(warning)


def machine_warnings(load: float, cores: int, frequency: str) -> Iterator[str]:
    """Yields the reasons why measurements may not be repeatable.

    Args:
        load: The load average of the last minute.
        cores: The number of cores of the machine.
        frequency: The result of `governor`.
    """
    if load > cores / 2:
        yield f"load average {load:.1f} on {with_count(cores, 'core')}: other work disturbs the measurement"
    if frequency not in ("", "performance"):
        yield f"CPU frequency scaling is on (governor {frequency}): latencies vary"


def _compare(
    name: str,
    path: Any,
    inputs: Sequence[Any],
    run: Callable[[], Any],
    spent: tuple[int, int],
    options: Mapping[str, Any],
) -> tuple[dict[str, Latency], Ratio]:
    pairs = options["iterations"] or PAIRS
    peer(name, path, options["threads"])  # as above
    engine = peer(name, path, options["threads"])
    shapes = [list(x.shape) for x in inputs]
    start = time.perf_counter_ns()
    if shapes != engine.shapes:
        engine.resize(shapes)
    prepared = engine.compile_ns + time.perf_counter_ns() - start

    def other() -> Any:
        return engine(inputs)

    firsts = timed(run), timed(other)
    for _ in range(options["warmup"]):
        run()
        other()
    inner = max(1, BLOCK_NS // max(timed(other), 1))
    found: list[tuple[float, float]] = []
    with common.progress(options["as_json"]) as bar:
        for block in bar.track(range(0, pairs, BLOCK), description=f"pairs with {name}"):
            found += timed_pairs(run, other, min(BLOCK, pairs - block), inner, seed=block)
    ours, theirs = (tuple(int(pair[side]) for pair in found) for side in (0, 1))
    latencies = {
        "nnhal": Latency(*spent, firsts[0], ours, sum(ours)),
        name: Latency(engine.load_ns, prepared, firsts[1], theirs, sum(theirs)),
    }
    return latencies, ratio(found)


def _document(
    model: str, threads: int, streams: int, latencies: dict[str, Latency], compared: Ratio | None, name: str | None
) -> dict[str, Any]:
    entries = {
        who: {
            "load_ns": found.load,
            "compile_ns": found.compile,
            "first_ns": found.first,
            "runs": len(found.runs),
            "min_ns": min(found.runs),
            **{f"p{q}_ns": round(found.quantile(q / 100)) for q in PERCENTILES},
            "runs_per_second": found.throughput,
        }
        for who, found in latencies.items()
    }
    document: dict[str, Any] = {"model": model, "threads": threads, "streams": streams, "latency": entries}
    if compared is not None:
        document["ratio"] = {"against": name, "median": compared.median, "low": compared.low, "high": compared.high}
    return document


def _latencies(latencies: Mapping[str, Latency], devices: str) -> list[str]:
    """Returns a table with a row for each figure and a column for each engine."""

    def row(name: str, of: Callable[[Latency], str]) -> list[str]:
        return [name, *map(of, latencies.values())]

    def time_row(name: str, figure: Callable[[Latency], float]) -> list[str]:
        return row(name, lambda found: duration(figure(found) / NS))

    rows = [
        time_row("Load", lambda f: f.load),
        time_row("Compile", lambda f: f.compile),
        time_row("First inference", lambda f: f.first),
        time_row("Latency   min", lambda f: min(f.runs)),
        *(time_row(f"          p{q}", partial(Latency.quantile, q=q / 100)) for q in PERCENTILES),
        row("Throughput", lambda f: f"{_rounded(f.throughput)} inf/s"),
    ]
    names = [f"nnhal ({devices})" if who == "nnhal" else f"{who} direct" for who in latencies]
    return columns(["", *(f">{name}" for name in (names if len(names) > 1 else [""]))], rows)


def _rounded(number: float) -> str:
    """Formats a number with at least three digits: 24.1, 937, 83,120."""
    return f"{number:,.0f}" if number >= 99.95 else f"{number:.3g}"


def _results(compared: Ratio | None, name: str | None, latencies: Mapping[str, Latency]) -> Iterator[str]:
    if compared is None:
        return
    pairs = len(latencies["nnhal"].runs)
    if compared.low <= 1 <= compared.high:
        verdict = "no measurable difference"
    else:
        verdict = "nnhal is slower" if compared.median > 1 else "nnhal is faster"
    interval = f"95 % CI {compared.low:.3f}-{compared.high:.3f}, {with_count(pairs, 'interleaved pair')}"
    yield f"nnhal / {name}: {compared.median:.3f}x ({interval}): {verdict}"


def _histograms(latencies: Mapping[str, Latency]) -> list[str]:
    rows = [
        [who, duration(min(f.runs) / NS), histogram(f.runs), duration(f.quantile(0.99) / NS)]
        for who, f in latencies.items()
    ]
    return columns(["Histogram", ">min", "", "p99"], rows)


def _bytes(count: int | None) -> str:
    return "?" if count is None else f"-{common.size(-count)}" if count < 0 else common.size(count)


def _memory_lines(memory: Mapping[str, Any]) -> Iterator[str]:
    """Yields the private memory by the kernel's count, and whether drivers report all memory."""
    found = [] if memory["private_bytes"] is None else [f"{_bytes(memory['private_bytes'])} private in this process"]
    found += [
        f"{_bytes(held)} private in the process of {name}"
        for name, held in memory["drivers_private_bytes"].items()
        if held is not None
    ]
    if not found:
        return
    unknown = any(step[figure] is None for step in memory["steps"] for figure in MemoryUse._fields)
    yield f"Memory: {', '.join(found)}{' (drivers do not report all memory)' if unknown else ''}"


def _memory_table(memory: Mapping[str, Any]) -> list[str]:
    """Returns the table of memory that drivers report, or no lines."""
    rows = [
        [str(step["step"]) if step["step"] >= 0 else "all", step["device"]]
        + [_bytes(step[figure]) for figure in MemoryUse._fields]
        for step in memory["steps"]
        if any(step[figure] is not None for figure in MemoryUse._fields)
    ]
    if memory["between"]:
        rows.append(["", "between partitions", "", "", _bytes(memory["between"]), ""])
    heads = [">partition", "device", ">weights copied", ">weights in place", ">working", ">per inference"]
    return ["Driver-reported memory", *columns(heads, rows, indent=2)] if rows else []


def _each(shares: Sequence[TimeSpent]) -> list[dict[str, Any]]:
    total = max(sum(share.spent for share in shares), 1)
    return [
        {
            "operations": s.operations,
            "label": s.label,
            "device": s.device,
            "p50_ns": round(s.spent),
            "share": s.spent / total,
        }
        for s in shares
    ]


def _profile(shares: Sequence[TimeSpent], most: int) -> Iterator[str]:
    """Yields the table of operations, the slowest first, and the sums by type."""
    total = max(sum(share.spent for share in shares), 1e-9)
    slowest = sorted(shares, key=lambda share: -share.spent)
    rows, running = [], 0.0
    for share in slowest[:most]:
        running += share.spent
        times = duration(share.spent / NS), f"{share.spent / total:.1%}", f"{running / total:.1%}"
        rows.append([share.label, share.device, *times])
    if rest := slowest[most:]:
        spent = sum(share.spent for share in rest)
        rows.append([f"{len(rest)} more: --verbose", "", duration(spent / NS), f"{spent / total:.1%}", "100.0%"])
    yield from columns(["Operation", "device", ">p50", ">share", ">cumulative"], rows)
    types = Counter[str]()
    for share in shares if not any(share.whole_step for share in shares) else ():
        types[share.label.split(" #")[0]] += round(share.spent)
    if len(types) > 1:
        shown = [f"{name} {spent / total:.0%}" for name, spent in types.most_common(TYPES)]
        other = sum(spent for _, spent in types.most_common()[TYPES:])
        yield f"By type: {', '.join(shown)}{f', other {other / total:.0%}' if other else ''}"
    for device in sorted({share.device for share in shares if share.whole_step}):
        yield f"{device} reports times of whole partitions only"
