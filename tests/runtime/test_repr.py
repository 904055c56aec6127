"""What `repr` says: one short line that tells what a thing is, also of what is closed, broken or has hostile names."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.model.graph import Location, Model, Operand, Operation, Subgraph

HOSTILE = "\x1b]0;gone\x07\x9b2J\u202e\ud800" + "n" * 70_000
X = np.ones((1, 3), np.float32)


def model_of(count: int = 2, name: str = "sample", label: str = "x") -> nnhal.Model:
    b = nnhal.Builder(name)
    x = y = b.input((1, 3), name=label)
    for _ in range(count):
        y = b.floor(y, name=label)
    return b.finish([x], [y])


@pytest.fixture
def compiled() -> Iterator[nnhal.Compiled]:
    with nnhal.compile(model_of(), devices="reference") as compiled:
        yield compiled


def one_line(thing: Any) -> str:
    text = repr(thing)
    assert len(text) <= 120 and text.isprintable(), text
    text.encode()
    return text


def test_of_a_model() -> None:
    said = "<Model 'sample', 2 operations, level 1.0, 1 input, 1 output: 'x' FLOAT32[1,3], -> 'x' FLOAT32[1,3]>"
    assert one_line(model_of()) == said


def test_of_a_model_with_many_inputs_as_many_as_there_is_room_for() -> None:
    b = nnhal.Builder()
    inputs = [b.input((n + 1, None, 3)) for n in range(100)]
    text = one_line(b.finish(inputs, [b.floor(x) for x in inputs]))
    assert text.startswith("<Model, 100 operations, level 1.0, 100 inputs, 100 outputs: FLOAT32[1,?,3], ")
    assert text.endswith(", ...>")


def test_of_what_was_never_validated_or_is_broken() -> None:
    operand = Operand(77777, (1,), name=5)  # type: ignore[arg-type]
    broken = Model(Subgraph((operand,), (Operation(1, (9,), (9,)),), (0, 4, -1), (8,)), name=HOSTILE)
    assert one_line(broken).startswith("<Model ")
    one_line(broken.main)
    one_line(Operand(0, location=Location()).location)


def test_of_things_with_hostile_names() -> None:
    model = model_of(3, HOSTILE, HOSTILE)
    compiled = nnhal.compile(model, devices="reference")
    execution = compiled.submit(X)
    execution.result()
    burst, stream = compiled.burst(), compiled.stream()
    for thing in (model, compiled, compiled.placement, burst, stream, execution, *compiled.inputs, compiled.bind(X)):
        one_line(thing)
    b = nnhal.Builder(HOSTILE)
    one_line(b.input((1,), name=HOSTILE))
    one_line(b)


def test_of_a_compiled_model_and_its_placement(compiled: nnhal.Compiled) -> None:
    said = "<Compiled 'sample', 1 partition, 2 on reference: 'x' FLOAT32[1,3], -> 'x' FLOAT32[1,3]>"
    assert one_line(compiled) == said
    assert one_line(compiled.placement) == "<Placement of 2 operations, 0 transfers: 1 partition, 2 on reference>"
    compiled.close()
    assert one_line(compiled).startswith("<Compiled 'sample', the compiled model was closed, 1 partition")


def test_of_a_large_placement_is_no_longer() -> None:
    placement = nnhal.compile(model_of(700), devices="reference").placement
    assert one_line(placement) == "<Placement of 700 operations, 0 transfers: 1 partition, 700 on reference>"
    assert len(str(placement).splitlines()) <= 24


def test_of_a_builder_and_a_tensor() -> None:
    b = nnhal.Builder("small")
    x = b.input((1, None), "TENSOR_FLOAT16", name="x")
    assert one_line(b.floor(x)) == "<Tensor 1: FLOAT16[1,?]>"
    assert one_line(x) == "<Tensor 0: 'x' FLOAT16[1,?]>"
    assert one_line(b) == "<Builder 'small': 2 operands, 1 operation>"
    assert one_line(nnhal.Builder()) == "<Builder: 0 operands, 0 operations>"


def test_of_a_burst_and_a_stream_open_and_closed(compiled: nnhal.Compiled) -> None:
    burst, stream = compiled.burst(), compiled.stream()
    assert one_line(burst).startswith("<CompiledBurst 'sample', 1 partition")
    assert one_line(stream) == "<Stream of 'sample', 0 states, open>"
    burst.close()
    stream.close()
    assert one_line(burst).startswith("<CompiledBurst 'sample', the burst was closed")
    assert one_line(stream) == "<Stream of 'sample', 0 states, closed>"


def test_of_executions(compiled: nnhal.Compiled) -> None:
    execution = compiled.submit(X)
    assert one_line(execution) in ("<Execution, in flight>", "<Execution, done>")
    execution.result()
    assert one_line(execution) == "<Execution, done>"
    fenced = compiled.execute_fenced(X)
    fenced.result()
    assert one_line(fenced).startswith("<Fenced, ")
    if fenced.fence is not None:
        fenced.fence.close()
    one_line(fenced)


def test_of_an_execution_that_failed(compiled: nnhal.Compiled) -> None:
    execution = compiled.submit(X, deadline=1e-9)
    with pytest.raises(nnhal.MissedDeadline):
        execution.result()
    assert one_line(execution) in (
        "<Execution, failed, MissedDeadline>",
        "<Execution, deadline passed>",
        "<Execution, cancelled>",
    )


def test_of_an_allocation(compiled: nnhal.Compiled) -> None:
    memory = nnhal.allocate([(compiled, "input", 0)])
    assert one_line(memory).startswith(f"<Allocation {memory.token} on reference, FLOAT32[1,3], open: input 0")
    memory.close()
    assert ", closed" in one_line(memory)


def test_of_many_scales_and_memories() -> None:
    assert one_line(nnhal.ChannelQuant((0.5,) * 4096, 0)).startswith(
        "<ChannelQuant along axis 0, 4096 scales: 0.5, 0.5"
    )
    memory = nnhal.Memory.allocate(64, "sample")
    assert one_line(memory) == "Memory(ashmem, 64 bytes)"
    memory.close()
    one_line(memory)
