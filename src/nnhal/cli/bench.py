"""`nnhal bench`: latency of load, compile, first run and steady state; throughput; against a peer engine, interleaved."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from nnhal import api
from nnhal.base.brief import duration
from nnhal.base.cores import usable_cores
from nnhal.base.time import NS
from nnhal.bench.each import TimeSpent, each_operation
from nnhal.bench.held import of_drivers, private_bytes
from nnhal.bench.latency import Latency, Ratio, histogram, interleaved, ratio, steady, timed
from nnhal.bench.peers import PEERS, peer
from nnhal.cli import common
from nnhal.cli.inputs import read_inputs
from nnhal.cli.pictures import InputOptions
from nnhal.cli.placement import placement_lines
from nnhal.hal.memory_use import MemoryUse
from nnhal.model.graph import Model
from nnhal.runtime.compiled import Compiled

PERCENTILES = 50, 90, 99
PAIRS, BLOCK = 200, 20
EACH_RUNS, ROWS = 30, 25
BLOCK_NS = 200_000  # calls shorter than this are timed in blocks
CORES = usable_cores()


@click.command("bench")
@common.model_options
@common.device_option
@common.driver_option
@common.option_option
@common.numerics_option
@common.fallback_option
@common.isolate_option
@common.strategy_options
@common.cache_options
@click.option("--threads", type=click.IntRange(1), default=CORES, show_default=True, help="Threads an engine may use.")
@click.option("--vs", "peer_name", type=click.Choice(PEERS), help="Compare with this engine called directly, in turn.")
@click.option("--iterations", type=click.IntRange(1), help="How many runs are measured, or pairs with --vs (200).")
@click.option(
    "--warmup", type=click.IntRange(0), default=3, show_default=True, help="Runs after the first, not measured."
)
@click.option(
    "--duration", type=common.Seconds(0), default=2.0, show_default=True, help="Seconds, without --iterations."
)
@click.option("--streams", type=click.IntRange(1), default=1, show_default=True, help="Runs in flight at once.")
@click.option(
    "--each",
    "--profile",
    "each",
    is_flag=True,
    help="Show what each operation took, the hottest first, of engines that tell.",
)
@click.option("--seed", default=0, help="Seed of random inputs.")
@common.trace_option
@common.json_option
def command(model: str, peer_name: str | None, streams: int, seed: int, **options: Any) -> None:
    """Measure MODEL: load, compile, first run, then latency (percentiles, histogram) and throughput.

    docs/cli.md says what counts as what. Nothing comes from a cache, but from that of --cache-dir.
    """
    if peer_name is not None and streams > 1:
        raise click.UsageError("--streams with --vs: pairs are run in turn, one at a time; must be one of the two")
    asked = options["cache_dir"] is not None
    folder = common.cache_folder(options["cache_dir"], options["no_cache"]) if asked else False
    names = common.load_drivers(options["drivers"], options["devices"])
    path, threads = common.contents(model), options["threads"]
    arguments = common.loading(model, options)

    place = common.placing(options, names)

    def loaded() -> Model:
        return api.load(path, **arguments, cache_dir=False)

    def prepared(graph: Model) -> Compiled:
        return api.compile(graph, devices=names, cache_dir=folder, **place)

    opened = common.open_model(model, options)
    prepared(opened).close()  # what is imported at the first use is no part of it
    before = private_bytes()
    start = time.perf_counter_ns()
    graph = loaded()
    load = time.perf_counter_ns() - start
    start = time.perf_counter_ns()
    compiled = prepared(graph)
    spent = time.perf_counter_ns() - start
    inputs = [g.array for g in read_inputs(compiled.inputs, (), seed, InputOptions())]

    def run() -> Any:
        return compiled(*inputs)

    if peer_name is None:
        first = timed(run)
        for _ in range(options["warmup"]):
            run()
        runs, wall = steady(run, options["duration"], options["iterations"] or 0, streams)
        latencies = {"nnhal": Latency(load, spent, first, runs, wall)}
        compared = None
    else:
        latencies, compared = _compare(peer_name, path, inputs, run, (load, spent), options)
        before = None  # the peer's memory is not told from ours
    after = private_bytes()
    memory = {
        **compiled.memory.to_dict(),
        "private_bytes": None if before is None or after is None else after - before,
        "drivers_private_bytes": of_drivers(compiled),
    }
    shares = each_operation(compiled, inputs, options["iterations"] or EACH_RUNS) if options["each"] else None
    if options["as_json"]:
        document = _document(model, threads, streams, latencies, compared, peer_name) | {"memory": memory}
        document["cache"] = [outcome._asdict() for outcome in compiled.cache]
        if shares is not None:
            document["each"] = _each(shares)
        common.emit(document)
        return
    for line in placement_lines(compiled.placement):
        common.console.print(line, markup=False)
    for line in common.cache_lines(compiled.cache) if asked else ():
        common.console.print(line, markup=False)
    _print(latencies, compared, peer_name, threads)
    _print_memory(memory)
    if shares is not None:
        _print_each(shares)


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
        for block in bar.track(range(0, pairs, BLOCK), description=f"pairs of runs with {name}"):
            found += interleaved(run, other, min(BLOCK, pairs - block), inner, seed=block)
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


def _print(latencies: dict[str, Latency], compared: Ratio | None, name: str | None, threads: int) -> None:
    rows = []
    for who, f in latencies.items():
        durations = f.load, f.compile, f.first, min(f.runs), *(f.quantile(q / 100) for q in PERCENTILES)
        cells = *(duration(ns / NS) for ns in durations), f"{f.throughput:.4g}", len(f.runs), histogram(f.runs)
        rows.append([who, *cells])
    percentiles = [f">{q} %" for q in PERCENTILES]
    columns = ["", ">load", ">compile", ">first run", ">min", *percentiles, ">runs/s", ">runs", "from min to 99 %"]
    common.table(columns, rows, title=f"{threads} engine threads")
    if compared is not None:
        common.console.print(f"nnhal / {name}, median of paired ratios with 95 % interval: {compared}", markup=False)


def _print_memory(memory: Mapping[str, Any]) -> None:
    """What drivers say that they hold, and what was measured; "?" for what nobody knows."""

    def size(count: int | None) -> str:
        return "?" if count is None else f"-{common.size(-count)}" if count < 0 else common.size(count)

    rows = [
        [f"{step['step']} on {step['device']}" if step["step"] >= 0 else f"all on {step['device']}"]
        + [size(step[figure]) for figure in MemoryUse._fields]
        for step in memory["steps"]
    ]
    if memory["between"]:
        rows.append(["between steps", "", "", size(memory["between"]), ""])
    common.table(["step", ">weights copied", ">in place", ">working", ">per execution"], rows, title="memory, as told")
    measured = {"more in this process": memory["private_bytes"]}
    measured |= {f"in the process of {name}": held for name, held in memory["drivers_private_bytes"].items()}
    known = [f"{size(held)} {where}" for where, held in measured.items() if held is not None]
    if known:
        common.console.print(f"measured, private: {', '.join(known)}")


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


def _print_each(shares: Sequence[TimeSpent]) -> None:
    total = sum(share.spent for share in shares)
    slowest = sorted(shares, key=lambda share: -share.spent)
    rows = [_row(share.label, share.device, share.spent, total) for share in slowest[:ROWS]]
    if slowest[ROWS:]:
        rest = sum(share.spent for share in slowest[ROWS:])
        rows.append(_row(f"{len(slowest) - ROWS} more", "", rest, total))
    common.table(["operation", "where", ">50 %", ">share"], rows, title="what took how long, the slowest first")
    for device in sorted({share.device for share in shares if share.whole_step}):
        common.console.print(f"{device} times only whole steps")


def _row(label: str, device: str, spent: float, total: float) -> list[str]:
    return [label, device, duration(spent / NS), f"{spent / max(total, 1):.1%}"]
