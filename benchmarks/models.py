"""Every model of the zoo and of the model maker on every device, against LiteRT run directly on the file.

    python benchmarks/models.py --agree [--json] [--markdown FILE] [NAME ...]

For each model: does it import, its level and operations, where operations ran, and how far outputs are from LiteRT's:
floats relative to the greatest magnitude, quantised outputs in steps. For quantised models each operation of `reference` is
also run by itself on LiteRT's own intermediates. Streaming models run 12 steps with their state carried on. In a process of
its own, and in every way to execute, each device gives the same bits as here.
"""

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

import nnhal
from nnhal import zoo
from nnhal.base.operands import quantised
from nnhal.bench.compare import each_operation, intermediates
from nnhal.cli.inputs import read_inputs
from nnhal.cli.pictures import InputOptions
from nnhal.measure.peers import LiteRT
from nnhal.runtime import discovery
from nnhal.runtime.arguments import spec_of
from nnhal.zoo import maker

REFERENCE_FLOAT, LITERT_FLOAT = 5e-4, 1e-6
# whose means of thousands of pixels nnhal's `litert` sums in stages, nearer to the exact mean than LiteRT called directly
STAGED = {"selfie_segmentation", "selfie_segmentation_landscape"}
CUSTOM = b"Convolution2DTransposeBias"
STEPS = 12  # of a streaming model
LEAST_SPREAD = 8  # distinct expected values over all runs, for outputs that have so many elements


@dataclass
class Row:
    """What was found of one model."""

    name: str
    source: str = ""
    refused: str = ""
    level: str = ""
    operations: int = 0
    kinds: int = 0
    quantised: bool = False
    states: int = 0
    placement: dict = field(default_factory=dict)
    reference: float = 0.0
    litert: float = 0.0
    each: float | None = None  # worst single operation of reference on LiteRT's intermediates, in steps
    spread: int = 0  # distinct expected values of the output that varies most
    compared: str = ""
    problems: list = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether it imports and every figure is as promised."""
        return not self.problems and not self.refused


def sources() -> dict[str, str]:
    """Names of all models, and where each comes from."""
    found = {n: f"{zoo.entry(n).package} {zoo.entry(n).version}" for n in zoo.names()}
    return found | dict.fromkeys(maker.names(), "made, fixed seed")


def examine(name: str, source: str) -> Row:
    """Import, compile and compare one model."""
    row = Row(name, source)
    path = Path(zoo.path(name) if name in zoo.names() else maker.path(name))
    try:
        model = nnhal.load(path)
    except nnhal.UnsupportedModel as error:
        row.refused = str(error).split(": ", 1)[-1]
        return row
    facts = nnhal.validate(model)
    row.level, row.operations, row.states = str(facts.level), len(model.main.operations), len(model.states)
    row.kinds = len({o.type for g in model.subgraphs for o in g.operations})
    outputs = [model.main.operands[i] for i in model.main.outputs]
    row.quantised = any(quantised(o.type) for o in outputs)
    runs = inputs_of(name, model)
    expected = direct(known(path), runs, streaming=bool(model.states))
    if min(spreads(expected)) < LEAST_SPREAD:  # saturated: compare before it too
        content = exposed(known(path))
        if len(model.main.outputs) < len((longer := nnhal.load(content)).main.outputs):
            row.compared = "and before the last SOFTMAX or LOGISTIC"
            model, expected = longer, direct(content, runs, streaming=bool(model.states))
    spread = spreads(expected)
    row.spread = max(spread)
    if row.spread < min(LEAST_SPREAD, len(runs)):
        row.problems.append(f"outputs have only {row.spread} distinct values: the comparison would prove nothing")
    for device in ("reference", "litert"):
        compiled = nnhal.compile(model, devices=device, fallback="allow", threads=2)
        call = compiled.stream() if model.states else compiled
        worst = max(compare(call(*run), wanted) for run, wanted in zip(runs, expected, strict=True))
        setattr(row, device, worst)
        row.placement[device] = compiled.placement.devices()
        apart(row, model, device, compiled, runs if device == "litert" else runs[:1])
    each(row, model, runs[0])
    judge(row)
    return row


def apart(row: Row, model: nnhal.Model, device: str, here: nnhal.Compiled, runs: list[list[np.ndarray]]) -> None:
    """The isolated device gives the same bits, in every way to execute."""
    options = {"devices": [device, "reference"], "isolation": "process", "fallback": "allow", "threads": 2}
    with nnhal.compile(model, **options) as there, there.burst() as burst:
        ways = {
            "a call": (here, there),
            "a burst": (here, burst),
            "submitted": (here, lambda *run: there.submit(*run).result()),
            "behind fences": (here, lambda *run: there.execute_fenced(*run).result()),
            "a stream": (here.stream(), there.stream()),
        }
        for way, (one, other) in ways.items():
            if not all(identical(one(*run), other(*run)) for run in runs):
                row.problems.append(f"{device} in its own process gives other bits: {way}")


def identical(one: object, other: object) -> bool:
    """Whether outputs have the same types, shapes and bits."""
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (one, other)), strict=True)
    return all((a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()) for a, b in pairs)


def each(row: Row, model: nnhal.Model, run: list[np.ndarray]) -> None:
    """For quantised models: every operation of reference on LiteRT's own intermediates."""
    litert, reference = discovery.select(["litert"])[0], discovery.cpu()
    if not row.quantised or not all(v.ok for v in litert.supports(model)):
        return
    inputs = [*run, *(state.initial for state in model.states)]
    values = intermediates(model, litert, inputs)
    every = range(len(model.main.operations))
    worst = [d for d in each_operation(model, reference, inputs, values, every) if quantised(d.type)]
    row.each = max(d.worst for d in worst)
    row.problems += [f"{d.label} of reference is {d.worst:g} steps off" for d in worst if d.worst > 1]


def judge(row: Row) -> None:
    """Hold the figures against what is promised."""
    if row.quantised:
        if row.litert != 0 and row.placement["litert"] == {"litert": row.operations}:
            row.problems.append(f"litert is {row.litert:g} steps off, must be exact")
        return
    if row.reference > REFERENCE_FLOAT:
        row.problems.append(f"reference is {row.reference:.2g} off, must be within {REFERENCE_FLOAT}")
    most = REFERENCE_FLOAT if row.name in STAGED else LITERT_FLOAT
    if row.litert > most and row.placement["litert"] == {"litert": row.operations}:
        row.problems.append(f"litert is {row.litert:.2g} off, must be within {most}")


def inputs_of(name: str, model: nnhal.Model) -> list[list[np.ndarray]]:
    """Runs: a real picture, as it is, mirrored and enlarged, where the model takes one; else seeded random data."""
    carried = {state.input for state in model.states}
    specs = [spec_of(model, i) for n, i in enumerate(model.main.inputs) if n not in carried]
    if name in zoo.names() and zoo.entry(name).kind == "picture":
        low, high = zoo.entry(name).values or (0.0, 1.0)
        (photo,) = (g.array for g in read_inputs(specs, ["picture_person"], 0, InputOptions(low, high)))
        height, width = (n // 2 for n in photo.shape[1:3])
        enlarged = photo[:, : 2 * (height // 2), width // 2 : width // 2 + width].repeat(2, 1).repeat(2, 2)
        full = np.zeros_like(photo)
        full[:, : enlarged.shape[1], : enlarged.shape[2]] = enlarged[:, : photo.shape[1], : photo.shape[2]]
        return [[photo], [np.ascontiguousarray(photo[:, :, ::-1])], [full]]
    seeds = range(STEPS if model.states else 3)
    return [[g.array for g in read_inputs(specs, (), seed, InputOptions())] for seed in seeds]


def known(path: Path) -> bytes:
    """The file as LiteRT can run it: MediaPipe's transposed convolution with a bias is TFLite's with a shape and options."""
    content = path.read_bytes()
    if CUSTOM not in content:
        return content
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema  # noqa: TID251 (the file format, no engine)

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    (graph,) = model.subgraphs
    for code in model.operatorCodes:
        if code.customCode == CUSTOM:
            code.customCode, code.builtinCode, code.version = None, schema.BuiltinOperator.TRANSPOSE_CONV, 3
            code.deprecatedBuiltinCode = code.builtinCode
    for operator in graph.operators:
        if operator.customOptions is not None:
            padding, width, height = np.asarray(operator.customOptions, np.uint8).view("<i4")[:3].tolist()
            shape, buffer = schema.TensorT(), schema.BufferT()
            buffer.data = np.array(graph.tensors[operator.outputs[0]].shape, "<i4").view(np.uint8)
            model.buffers.append(buffer)
            shape.name, shape.shape, shape.type = "shape", [4], schema.TensorType.INT32
            shape.buffer = len(model.buffers) - 1
            graph.tensors.append(shape)
            options = operator.builtinOptions = schema.TransposeConvOptionsT()
            operator.builtinOptionsType = schema.BuiltinOptions.TransposeConvOptions
            options.padding, options.strideW, options.strideH = padding - 1, width, height
            x, weights, bias = operator.inputs
            operator.inputs, operator.customOptions = [len(graph.tensors) - 1, weights, x, bias], None
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def exposed(content: bytes) -> bytes:
    """The file with what its final SOFTMAX or LOGISTIC reads as further outputs: those saturate, their inputs vary."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema  # noqa: TID251 (the file format, no engine)

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    graph = model.subgraphs[0]
    codes = [max(c.builtinCode, c.deprecatedBuiltinCode) for c in model.operatorCodes]
    final = {schema.BuiltinOperator.SOFTMAX, schema.BuiltinOperator.LOGISTIC}
    through = {schema.BuiltinOperator.QUANTIZE, schema.BuiltinOperator.RESHAPE}
    wanted, found = set(graph.outputs), []
    for operator in reversed(graph.operators):
        if wanted & set(operator.outputs):
            code = codes[operator.opcodeIndex]
            if code in through:
                wanted.add(operator.inputs[0])
            elif code in final:
                found.append(operator.inputs[0])
    graph.outputs = [*graph.outputs, *(t for t in reversed(found) if t not in graph.outputs)]
    model.signatureDefs = None
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def spreads(expected: list[list[np.ndarray]]) -> list[int]:
    """Distinct values of each output over all runs."""
    return [len(np.unique(np.concatenate([run[i].reshape(-1) for run in expected]))) for i in range(len(expected[0]))]


def direct(path: Path | bytes, runs: list[list[np.ndarray]], *, streaming: bool) -> list[list[np.ndarray]]:
    """What LiteRT gives: one interpreter for a stream, a fresh state for each call else."""
    engine = LiteRT(path, 2)
    results = []
    for run in runs:
        if not streaming:
            engine.reset()
        results.append(engine(run))
    return results


def compare(outputs: object, expected: list[np.ndarray]) -> float:
    """The worst difference: steps for integers, else relative to the greatest magnitude."""
    given = outputs if isinstance(outputs, tuple) else (outputs,)
    worst = 0.0
    for a, e in zip(given, expected, strict=True):
        if a.size != e.size:
            return float("inf")
        off = np.abs(a.reshape(-1).astype(np.float64) - e.reshape(-1).astype(np.float64)).max(initial=0.0)
        scale = max(float(np.abs(e).max(initial=0.0)), 1e-30) if e.dtype.kind == "f" else 1.0
        worst = max(worst, float(off) / scale)
    return worst


def markdown(rows: list[Row]) -> str:
    """The table for the documentation."""
    lines = [
        "| model | from | level | operations | on litert | litert off by | reference off by | single operation |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if not row.refused:
            unit = " LSB" if row.quantised else ""
            on = row.placement["litert"].get("litert", 0)
            single = "" if row.each is None else f"{row.each:g} LSB"
            cells = (
                row.name,
                row.source,
                row.level,
                f"{row.operations} ({row.kinds} kinds)",
                f"{on} of {row.operations}",
            )
            lines.append(f"| {' | '.join(cells)} | {row.litert:.2g}{unit} | {row.reference:.2g}{unit} | {single} |")
    lines += ["", "Not expressible in NNAPI:", ""]
    lines += [f"- {row.name} ({row.source}): {row.refused}" for row in rows if row.refused]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these models")
    parser.add_argument("--agree", action="store_true", help="compare with LiteRT (the only thing there is to do)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    arguments = parser.parse_args()
    found = sources()
    rows = []
    for number, name in enumerate(arguments.names or found, 1):
        print(f"[{number}/{len(arguments.names or found)}] {name}", file=sys.stderr, flush=True)
        rows.append(examine(name, found[name]))
        for problem in rows[-1].problems:
            print(f"    {problem}", file=sys.stderr)
    if arguments.markdown:
        arguments.markdown.write_text(markdown(rows))
    if arguments.json:
        print(json.dumps([asdict(row) | {"agrees": row.agrees} for row in rows], indent=2))
    else:
        print(markdown(rows))
    verdicts = Counter("refused" if r.refused else "agrees" if r.agrees else "differs" for r in rows)
    print(", ".join(f"{n} {what}" for what, n in verdicts.items()), file=sys.stderr)
    return 1 if verdicts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
