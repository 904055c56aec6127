"""Models whose operations depend on open dimensions: each set of input shapes is compiled on demand."""

import logging
import threading

import numpy as np
import pytest
from onnx import helper

import nnhal
from nnhal.base.errors import (
    BadState,
    Closed,
    InvalidArgument,
    InvalidRequest,
    MissedDeadline,
    OperationFailed,
    ShapeNeeded,
    UnsupportedModel,
)
from nnhal.runtime.by_shape import OptionsOfAllShapes
from nnhal.runtime.cache.wanted import CacheSettings
from tests.contract.drivers import tunable
from tests.frontends.flat import Writer
from tests.frontends.onnx_models import by_onnxruntime, model, node
from tests.interrupts import interrupted_at
from tests.runtime.devices import Fake, for_nothing
from tests.runtime.test_compiled import in_child
from tests.waiting import until

DEVICES = ("reference", "litert", "onnxruntime", "openvino")
TABLE = np.random.default_rng(1).standard_normal((50, 4)).astype(np.float32)
POSITIONS = np.random.default_rng(2).standard_normal((1, 32, 4)).astype(np.float32)


def embedding():
    """Rows of a table plus the first positions, as text encoders have them; and how long the sequence is."""
    nodes = [
        node("Gather", "table ids", "rows"),
        node("Shape", "ids", "shape"),
        node("Gather", "shape one", "length", axis=0),
        node("Unsqueeze", "length zero", "end"),
        node("Slice", "positions zero end one_row", "first"),
        node("Add", "rows first", "y"),
        node("Expand", "end shape", "lengths"),
    ]
    constants = {
        "table": TABLE,
        "positions": POSITIONS,
        "one": np.int64(1),
        "zero": np.int64([0]),
        "one_row": np.int64([1]),
    }
    ids = {"ids": np.zeros((1, 5), np.int64)}
    return model(nodes, ids, constants, "y lengths", shapes={"ids": ["batch", "length"]})


def ids(batch, length):
    return np.random.default_rng(batch * 100 + length).integers(0, 50, (batch, length))


def opened(**options):
    return nnhal.compile(nnhal.load(embedding().SerializeToString(), shapes={"ids": (0, 0)}), **options)


@pytest.mark.parametrize("device", DEVICES)
def test_each_set_of_shapes_gives_what_the_files_engine_gives(device):
    made, compiled = embedding(), opened(devices=[device, "reference"])
    with compiled:
        for batch, length in ((1, 5), (3, 7), (1, 32), (1, 5)):
            x = ids(batch, length)
            for got, expected in zip(compiled(x), by_onnxruntime(made, {"ids": x}), strict=True):
                assert got.dtype == expected.dtype
                np.testing.assert_array_equal(got, expected)
        assert compiled.shapes == [{"ids": (3, 7)}, {"ids": (1, 32)}, {"ids": (1, 5)}]


def test_every_way_to_execute_takes_any_shape():
    made, compiled, x = embedding(), opened(devices="reference"), ids(2, 6)
    expected = by_onnxruntime(made, {"ids": x})
    with compiled:
        ways = {
            "call": compiled(x),
            "by name": tuple(compiled({"ids": x}).values()),
            "lists": compiled(x.tolist()),
            "run": compiled.run(x, deadline=60, measure=True)[0],
            "submit": compiled.submit(x, deadline=60).result(),
            "bind": compiled.bind(x)(),
            "fenced": compiled.at({"ids": (2, 6)}).execute_fenced(x).result(),
            "burst": compiled.at([(2, 6)]).burst()(x),
            "stream": compiled.at([(2, 6)]).stream()(x),
        }
        assert len(compiled.shapes) == 1
    for way, outputs in ways.items():
        for got, right in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(got, right, err_msg=way)


def test_the_model_says_what_is_open_and_what_it_needs():
    graph = nnhal.load(embedding().SerializeToString(), shapes={"ids": (0, 0)})
    assert isinstance(graph, nnhal.OpenModel)
    assert graph.shapes == {"ids": (0, 0)}
    compiled = nnhal.compile(graph, devices="reference")
    assert [spec.shape for spec in (*compiled.inputs, *compiled.outputs)] == [
        (None, None),
        (None, None, 4),
        (None, None),
    ]
    with pytest.raises(ShapeNeeded, match=r"the sizes of ids \[\?, \?\] decide its operations"):
        nnhal.validate(graph)
    assert nnhal.validate(graph.at({"ids": (2, 3)}))
    with pytest.raises(BadState, match="another process loads the file"):
        graph.__reduce_ex__(4)


def test_shapes_that_cannot_be_are_refused():
    graph = nnhal.load(embedding().SerializeToString(), shapes={"ids": (1, 0)})
    compiled = nnhal.compile(graph, devices="reference")
    with pytest.raises(InvalidRequest, match=r"input 0 \(ids\) has shape \[2, 5\], must be \[1, \?\]"):
        compiled(ids(2, 5))
    with pytest.raises(InvalidRequest, match="input 0"):
        compiled(np.zeros((1, 5), np.float32))
    with pytest.raises(InvalidRequest, match="no 'ids'"):
        compiled({"idx": ids(1, 5)})
    for shapes, why in (
        ({"idx": (1, 5)}, "is 'idx', must be an input: one of ids"),
        ({}, "ids is missing"),
        ([(2, 5)], r"ids is \[2, 5\], must be \[1, \?\]"),
        ([(1, 0)], "from 1 to"),
        ([(1, 5), (1, 5)], "one shape for each of ids"),
    ):
        for at in (graph.at, compiled.at):
            with pytest.raises(InvalidArgument, match=why):
                at(shapes)
    assert compiled.shapes == []
    with pytest.raises(InvalidArgument, match=r"variants is 0, must be an integer of at least 1"):
        nnhal.compile(graph, variants=0)


@pytest.mark.parametrize("layer", [node("LayerNormalization", "x s"), node("MatMul", "x w")])
def test_a_dimension_may_be_left_open_of_which_the_file_allows_but_one_size(layer):
    """Some exporters name every dimension. None of the usual sizes is 5, as the scale and the weights have it."""
    arrays = {"x": np.random.default_rng(3).standard_normal((2, 3, 4, 5)).astype(np.float32)}
    constants = {"s": np.linspace(1, 2, 5, dtype=np.float32), "w": np.ones((5, 6), np.float32)}
    made = model([layer], arrays, constants, shapes={"x": ["n", 3, "h", "w"]})
    imported = nnhal.load(made.SerializeToString(), shapes={"x": (0, 3, 0, 0)})
    with nnhal.compile(imported, devices=["reference"]) as compiled:
        np.testing.assert_allclose(compiled(arrays["x"]), by_onnxruntime(made, arrays)[0], atol=2e-6)


def test_dimensions_of_one_name_are_of_one_size():
    nodes = [
        node("Shape", "a", "shape"),
        node("Gather", "shape one", "length", axis=0),
        node("Unsqueeze", "length zero", "end"),
        node("Slice", "a zero end last", "first"),
        node("Add", "first b", "y"),
    ]
    constants = {"one": np.int64(1), "zero": np.int64([0]), "last": np.int64([1])}
    x = np.ones((2, 3), np.float32)
    made = model(nodes, {"a": x, "b": x}, constants, shapes={"a": ["n", "m"], "b": ["n", "m"]})
    graph = nnhal.load(made.SerializeToString(), shapes={"a": (0, 0)})
    with nnhal.compile(graph, devices="reference") as compiled:
        np.testing.assert_array_equal(compiled(x, x), 2 * x)
        with pytest.raises(InvalidRequest, match="'m' is 3 in dimension 1 of input 0 and 1 in dimension 1 of input 1"):
            compiled(x, x[:, :1])


def test_a_loop_takes_as_many_steps_as_an_open_dimension_has():
    count, goes_on, a = (helper.make_tensor_value_info(*of) for of in (("n", 7, []), ("c", 9, []), ("a", 1, None)))
    inner = [node("Add", "a a", "twice"), node("Identity", "c", "again")]
    results = [helper.make_tensor_value_info("again", 9, []), helper.make_tensor_value_info("twice", 1, None)]
    body = helper.make_graph(inner, "body", [count, goes_on, a], results)
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape one", "length", axis=0),
        helper.make_node("Loop", ["length", "", "x"], ["y"], body=body),
    ]
    x = np.ones((1, 3), np.float32)
    made = model(nodes, {"x": x}, {"one": np.int64(1)}, shapes={"x": ["batch", "length"]})
    with nnhal.compile(nnhal.load(made.SerializeToString(), shapes={"x": (0, 0)}), devices="reference") as compiled:
        np.testing.assert_array_equal(compiled(x), 8 * x)
        np.testing.assert_array_equal(compiled(x[:, :1]), 2 * x[:, :1])


def test_what_no_size_helps_against_is_refused_at_once():
    nodes = [*embedding().graph.node, node("StringNormalizer", "y", "z")]
    made = model(nodes, {"ids": ids(1, 5)}, outputs="z", shapes={"ids": ["n", "m"]}, infer=False)
    made.graph.initializer.extend(embedding().graph.initializer)
    with pytest.raises(UnsupportedModel, match="StringNormalizer") as caught:
        nnhal.load(made.SerializeToString(), shapes={"ids": (0, 0)})
    assert "Slice" not in str(caught.value)


def test_so_many_sets_are_kept_and_thrashing_is_noted_once(caplog):
    fake = Fake()
    with opened(devices=[fake], variants=2) as compiled, caplog.at_level(logging.WARNING, "nnhal.compilation"):
        held = compiled.at([(1, 1)])
        for _ in range(3):
            for length in (1, 2, 3):
                compiled(ids(1, length))
        assert [sizes["ids"] for sizes in compiled.shapes] == [(1, 2), (1, 3)]
        assert len(caplog.records) == 1
        assert "2 sets are kept" in caplog.text
        held(ids(1, 1))  # who holds one keeps it
        del held
        assert [each.closed for each in fake.prepared] == [True] * 7 + [False] * 2
    assert all(each.closed for each in fake.prepared)


def test_threads_that_meet_new_shapes_compile_them_once():
    entered, go = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        entered.release()
        assert go.wait(60)

    fake, results = Fake(on_prepare=wait), []
    compiled = opened(devices=[fake])
    threads = [threading.Thread(target=lambda: results.append(compiled(ids(1, 4))[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.acquire(timeout=60)
    go.set()
    for thread in threads:
        thread.join()
    expected = by_onnxruntime(embedding(), {"ids": ids(1, 4)})[0]
    assert len(results) == 4
    assert all(np.array_equal(got, expected) for got in results)
    assert len(fake.prepared) == 1
    compiled.close()


def test_a_deadline_bounds_the_compilation_for_new_shapes():
    compiled = opened(devices="reference")
    with pytest.raises(MissedDeadline):
        compiled.run(ids(1, 4), deadline=0)
    assert compiled.shapes == []
    assert compiled.run(ids(1, 4), deadline=60)[0][0].shape == (1, 4, 4)


class Held(Fake):
    """Its first compilation stays until `go` is set, and raises `error` then, where there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(on_prepare=self._wait)
        self.entered, self.go, self.error = threading.Event(), threading.Event(), error

    def _wait(self) -> None:
        if not self.entered.is_set():
            self.entered.set()
            assert self.go.wait(60)
            if self.error is not None:
                raise self.error


def test_a_deadline_bounds_the_wait_for_a_compilation_by_another_thread():
    held = Held()
    with opened(devices=[held]) as compiled:
        first = threading.Thread(target=lambda: compiled(ids(1, 4)))
        first.start()
        assert held.entered.wait(60)
        with pytest.raises(MissedDeadline, match=r"inputs of shapes \[1, 4\]: another thread"):
            compiled.run(ids(1, 4), deadline=0.01)
        held.go.set()
        first.join()
        assert compiled.run(ids(1, 4), deadline=60)[0][0].shape == (1, 4, 4)


def test_a_missed_deadline_is_that_of_its_own_execution():
    held, ended = Held(MissedDeadline("late")), {}

    def use(name, **options):
        try:
            ended[name] = compiled.run(ids(1, 4), **options)[0][0].shape
        except MissedDeadline as error:
            ended[name] = str(error)

    with opened(devices=[held]) as compiled:
        threads = [threading.Thread(target=use, args=("maker",)), threading.Thread(target=use, args=("waiter",))]
        threads[0].start()
        assert held.entered.wait(60)
        threads[1].start()
        until(lambda: compiled._made._waits)
        held.go.set()
        for thread in threads:
            thread.join()
    assert "late" in ended["maker"]
    assert ended["waiter"] == (1, 4, 4)


def test_after_close_every_use_raises_closed():
    fake = Fake()
    compiled = opened(devices=[fake])
    compiled(ids(1, 4))
    compiled.close()
    compiled.close()
    assert [each.closed for each in fake.prepared] == [True]
    for use in (
        lambda: compiled(ids(1, 4)),
        lambda: compiled(ids(1, 5)),
        lambda: compiled.at([(1, 4)]),
        compiled.burst,
    ):
        with pytest.raises(Closed):
            use()


def test_shapes_whose_compiled_model_the_caller_closes_are_compiled_again():
    fake = Fake()
    with opened(devices=[fake]) as compiled:
        with compiled.at([(1, 4)]) as one:
            one(ids(1, 4))
        assert compiled.shapes == []
        assert not compiled.memory.steps
        assert compiled(ids(1, 4))[0].shape == (1, 4, 4)
        assert [each.closed for each in fake.prepared] == [True, False]


def test_a_close_while_shapes_are_compiled_leaves_nothing_open():
    fake = Fake()
    compiled = opened(devices=[fake])
    fake.on_prepare = compiled.close
    with pytest.raises(Closed):
        compiled(ids(1, 4))
    assert [each.closed for each in fake.prepared] == [True]


def test_a_forked_child_may_not_use_it():
    compiled = opened(devices="reference")
    compiled(ids(1, 4))

    for length in (4, 5):
        assert "forked" in in_child(lambda length=length: compiled(ids(1, length)))
    compiled.close()


def test_what_is_of_one_set_of_shapes_says_so():
    compiled = opened(devices="reference")
    with pytest.raises(BadState, match="no input shapes are compiled yet"):
        _ = compiled.placement
    compiled(ids(1, 4))
    assert compiled.placement.devices() == {"reference": len(compiled.placement.choices)}
    assert compiled.memory.total.weights_in_place
    for use in (compiled.burst, compiled.stream):
        with pytest.raises(InvalidArgument, match=r"must be at\(shapes\)\."):
            use()
    with pytest.raises(InvalidArgument, match=r"must be of compiled\.at\(shapes\)"):
        nnhal.allocate([(compiled, "input", 0)])
    one = compiled.at([(1, 4)])
    room = nnhal.allocate([(one, "output", 0)])
    compiled(ids(1, 4), out=[room, None])
    np.testing.assert_array_equal(room.read(), compiled(ids(1, 4))[0])
    given = nnhal.allocate([(one, "input", 0)])
    with pytest.raises(OperationFailed, match="no contents"):
        compiled(given)
    given.write(np.int32([[1, 2, 3, 4]]))
    np.testing.assert_array_equal(compiled(given)[0], compiled([[1, 2, 3, 4]])[0])
    for each in (room, given):
        each.close()


@pytest.mark.parametrize("shape", [[1, 4], None, "?"])
def test_an_array_like_input_whose_shape_is_no_tuple_is_converted(shape):
    class Rows:
        def __array__(self, dtype=None, copy=None):
            return ids(1, 4)

    rows = Rows()
    rows.shape = shape
    with opened(devices="reference") as compiled:
        np.testing.assert_array_equal(compiled(rows)[0], compiled(ids(1, 4))[0])


def test_an_option_that_changes_holds_for_shapes_that_come_later(monkeypatch):
    nnhal.load_driver(tunable.__file__)
    for_nothing(monkeypatch)

    rules = [nnhal.Rule("reference", type="TENSOR_INT32"), nnhal.Rule("tunable", "ADD", type="TENSOR_FLOAT32")]
    options = {"tunable": {"gain": 1}}
    with opened(devices=["tunable", "reference"], driver_options=options, placement=rules) as compiled:
        with pytest.raises(BadState, match="no input shapes are compiled yet"):
            compiled.configure("tunable", {"gain": 2})
        one = compiled(ids(1, 4))[0]
        compiled.configure("tunable", {"gain": 2})
        np.testing.assert_array_equal(compiled(ids(1, 4))[0], 2 * one)
        later = by_onnxruntime(embedding(), {"ids": ids(1, 6)})[0]
        np.testing.assert_array_equal(compiled(ids(1, 6))[0], 2 * later)


def test_an_option_that_changes_holds_for_shapes_that_only_the_caller_keeps(monkeypatch):
    nnhal.load_driver(tunable.__file__)
    for_nothing(monkeypatch)

    rules = [nnhal.Rule("reference", type="TENSOR_INT32"), nnhal.Rule("tunable", "ADD", type="TENSOR_FLOAT32")]
    options = {"tunable": {"gain": 1}}
    with opened(devices=["tunable", "reference"], driver_options=options, placement=rules, variants=1) as compiled:
        held = compiled.at([(1, 4)])
        one = held(ids(1, 4))[0]
        compiled(ids(1, 6))
        assert compiled.shapes == [{"ids": (1, 6)}]
        compiled.configure("tunable", {"gain": 2})
        np.testing.assert_array_equal(held(ids(1, 4))[0], 2 * one)


def test_each_set_of_shapes_has_a_token_apart():
    graph = nnhal.load(embedding().SerializeToString(), shapes={"ids": (0, 0)})
    tokens = {CacheSettings(token=bytes(32)).for_shapes(graph.at([(1, length)])).token for length in (4, 4, 5)}
    assert len(tokens) == 2
    assert bytes(32) not in tokens


def test_the_cache_keeps_each_set_of_shapes(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(embedding().SerializeToString())
    for token in (None, bytes(32)):
        for state in ("miss", "hit"):
            graph = nnhal.load(file, shapes={"ids": (0, 0)}, cache_dir=tmp_path / "cache")
            options = {"devices": "openvino", "cache_dir": tmp_path / "cache", "token": token}
            with nnhal.compile(graph, **options) as compiled:
                for length in (4, 6):
                    got = compiled(ids(1, length))[0]
                    np.testing.assert_array_equal(got, by_onnxruntime(embedding(), {"ids": ids(1, length)})[0])
                assert [outcome.state for outcome in compiled.cache] == [state] * 2


def test_a_tflite_file_that_needs_its_sizes_is_imported_for_each():
    w = Writer()
    x, shape, row, full, y = (
        w.tensor((1, 3)),
        w.tensor((2,), "i4"),
        w.tensor((1,), data=[7]),
        w.tensor((1, 3)),
        w.tensor((1, 3)),
    )
    w.operator("SHAPE", [x], [shape])
    w.operator("BROADCAST_TO", [row, shape], [full])
    w.operator("ADD", [x, full], [y])
    graph = nnhal.load(w.file([x], [y]), shapes=[(0, 0)])
    assert isinstance(graph, nnhal.OpenModel)
    for device in DEVICES:
        with nnhal.compile(graph, devices=[device, "reference"]) as compiled:
            for size in ((1, 3), (4, 2)):
                np.testing.assert_array_equal(compiled(np.ones(size, np.float32)), np.full(size, 8))


def test_an_interrupt_as_options_begin_to_change_leaves_their_change_to_others():
    options, begins = OptionsOfAllShapes("m"), ("_alone", "held_lock")
    changed = []

    def change():
        with options._alone(0):
            changed.append(True)

    interrupted_at(lambda frame, event: event == "c_return" and frame.f_code.co_name in begins, change)
    assert changed
