"""`nnhal bench`: latency of compile, first run and steady state; against a peer engine, interleaved."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from nnhal import api
from nnhal.bench.latency import Latency, Ratio, histogram, interleaved, ratio, steady, timed
from nnhal.bench.peers import PEERS, peer
from nnhal.cli import common
from nnhal.cli.inputs import PictureOptions, read_inputs
from nnhal.cli.placement import placement_lines

WARM_UP = 3
BLOCK_NS = 200_000  # calls shorter than this are timed in blocks
CORES = len(os.sched_getaffinity(0))


@click.command("bench")
@common.model_options
@common.device_option
@common.driver_option
@common.fallback_option
@click.option("--threads", type=click.IntRange(1), default=CORES, show_default=True, help="Threads an engine may use.")
@click.option("--vs", "peer_name", type=click.Choice(PEERS), help="Compare with this engine called directly, in turn.")
@click.option("--pairs", type=click.IntRange(10), default=200, show_default=True, help="Pairs of runs with --vs.")
@click.option("--seconds", default=2.0, show_default=True, help="How long to measure the steady state without --vs.")
@click.option("--seed", default=0, help="Seed of random inputs.")
@common.json_option
def command(model: str, peer_name: str | None, pairs: int, seconds: float, seed: int, **options: Any) -> None:
    """Measure the latency of MODEL: compile, first run, steady state (min, median, 95 %, histogram)."""
    names = common.load_drivers(options["drivers"], options["devices"])
    path, threads = common.contents(model), options["threads"]
    graph = common.open_model(model, options["shapes"], options["signature"])
    start = time.perf_counter_ns()
    compiled = api.compile(graph, devices=names, fallback=options["fallback"], threads=threads)
    spent = time.perf_counter_ns() - start
    inputs = [g.array for g in read_inputs(compiled.inputs, (), seed, PictureOptions())]

    def run() -> Any:
        return compiled(*inputs)

    if peer_name is None:
        latencies = {"nnhal": _measure(run, spent, seconds)}
        compared = None
    else:
        latencies, compared = _compare(peer_name, path, threads, inputs, run, spent, pairs, options["as_json"])
    if options["as_json"]:
        common.emit(_document(model, threads, latencies, compared, peer_name))
        return
    for line in placement_lines(compiled.placement):
        common.console.print(line, markup=False)
    _print(latencies, compared, peer_name, threads)


def _measure(run: Callable[[], Any], compiling: int, seconds: float) -> Latency:
    first = timed(run)
    for _ in range(WARM_UP):
        run()
    return Latency(compiling, first, steady(run, seconds))


def _compare(
    name: str,
    path: Any,
    threads: int,
    inputs: Sequence[Any],
    run: Callable[[], Any],
    compiling: int,
    pairs: int,
    quiet: bool,
) -> tuple[dict[str, Latency], Ratio]:
    start = time.perf_counter_ns()
    engine = peer(name, path, threads)
    shapes = [list(x.shape) for x in inputs]
    if shapes != [list(d["shape"]) for d in engine.inputs]:
        engine.resize(shapes)
    prepared = time.perf_counter_ns() - start

    def other() -> Any:
        return engine(inputs)

    firsts = timed(run), timed(other)
    for _ in range(WARM_UP):
        run()
        other()
    inner = max(1, BLOCK_NS // max(timed(other), 1))
    found: list[tuple[float, float]] = []
    with common.progress(quiet) as bar:
        for block in bar.track(range(10), description=f"pairs of runs with {name}"):
            found += interleaved(run, other, pairs // 10, inner, seed=block)
    ours, theirs = (tuple(int(pair[side]) for pair in found) for side in (0, 1))
    latencies = {"nnhal": Latency(compiling, firsts[0], ours), name: Latency(prepared, firsts[1], theirs)}
    return latencies, ratio(found)


def _document(
    model: str, threads: int, latencies: dict[str, Latency], compared: Ratio | None, name: str | None
) -> dict[str, Any]:
    entries = {
        who: {
            "compile_ns": found.compile,
            "first_ns": found.first,
            "runs": len(found.runs),
            "min_ns": min(found.runs),
            "median_ns": found.quantile(0.5),
            "p95_ns": found.quantile(0.95),
        }
        for who, found in latencies.items()
    }
    document: dict[str, Any] = {"model": model, "threads": threads, "latency": entries}
    if compared is not None:
        document["ratio"] = {"against": name, "median": compared.median, "low": compared.low, "high": compared.high}
    return document


def _print(latencies: dict[str, Latency], compared: Ratio | None, name: str | None, threads: int) -> None:
    rows = [
        [
            who,
            *map(common.milliseconds, (f.compile, f.first, min(f.runs), f.quantile(0.5), f.quantile(0.95))),
            len(f.runs),
            histogram(f.runs),
        ]
        for who, f in latencies.items()
    ]
    columns = ["", ">compile", ">first run", ">min", ">median", ">95 %", ">runs", "from min to 99 %"]
    common.table(columns, rows, title=f"{threads} engine threads")
    if compared is not None:
        common.console.print(f"nnhal / {name}, median of paired ratios with 95 % interval: {compared}", markup=False)
