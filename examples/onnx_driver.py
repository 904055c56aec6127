"""A driver that compiles, on the kit of nnhal.driver: 21 operations on ONNX Runtime.

    pip install onnx onnxruntime
    nnhal run mobilenet_v2 --driver examples/onnx_driver.py

An entry of the table says how an operation becomes ONNX nodes; verdicts and preparation run the same entries. Between nodes
all is float32: a quantised or float16 operand is what it stands for, and is rounded to its type where an operation gives it.
"""

import os
from functools import partial

import numpy as np

from nnhal.driver import (
    ACTIVATION_RANGE,
    CONSTANTS,
    F16,
    F32,
    Q8,
    Q8PC,
    Q8S,
    Q8SYMM,
    Activation,
    Capabilities,
    Device,
    Interpreter,
    InvalidArgument,
    LoweringTable,
    LoweringTask,
    Padding,
    Prepared,
    Refused,
    bounds,
    decode,
    for_each_shape,
    product_scales,
    usable_cores,
    validate,
    window,
)

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it is on otherwise
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

onnxruntime.set_default_logger_severity(4)  # what goes wrong is raised too

table = LoweringTable("ONNX Runtime", frozenset((F32, F16, Q8, Q8S)))
FAR = 2.0**24  # from 1: beyond, products of scales leave float32, and the engine loses an activation's bounds


class Graph:
    """An ONNX graph in the making. Operand 7 is `%7` in its own type, `%7 real` in float32."""

    def __init__(self, model):
        self.model, self.values = model, validate(model).subgraphs[0].values
        self.nodes, self.arrays, self.real_ones = [], {}, set()

    def node(self, kind, *inputs, name="", **attributes):
        name = name or f"{kind} {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, data, dtype=np.float32, name=""):
        name = name or f"constant {len(self.arrays)}"
        self.arrays[name] = np.asarray(data, dtype)
        return name

    def stored(self, index):
        operand, name = self.model.main.operands[index], f"%{index}"
        if operand.lifetime in CONSTANTS and name not in self.arrays:
            self.constant(self.model.constant(operand), None, name)
        return name

    def real(self, index):
        value, name = self.values[index], f"%{index} real"
        if name not in self.real_ones:
            self.real_ones.add(name)
            if value.data is not None:
                self.constant(decode(value, value.data), name=name)
            elif value.quantised:
                self.node("DequantizeLinear", self.stored(index), *self.steps(value), name=name, **axis_of(value))
            else:
                self.node("Cast", self.stored(index), to=TensorProto.FLOAT, name=name)
        return name

    def give(self, index, real):
        value, name = self.values[index], f"%{index}"
        if value.quantised:
            self.node("QuantizeLinear", real, *self.steps(value), name=name)
        else:
            self.node("Cast", real, to=onnx_type(value), name=name)

    def steps(self, value):
        scales = scales_of(value)
        return self.constant(scales), self.constant(np.full(scales.shape, value.zero_point), value.dtype)

    def finish(self):
        ends = [
            [helper.make_tensor_value_info(self.stored(i), onnx_type(self.values[i]), None) for i in some]
            for some in (self.model.main.inputs, self.model.main.outputs)
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.arrays.items()]
        graph = helper.make_graph(self.nodes, "nnhal", *ends, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def onnx_type(value):
    return helper.np_dtype_to_tensor_dtype(value.dtype)


def axis_of(value):
    return {"axis": value.channel.axis} if value.channel else {}


def scales_of(value):
    """One, or one for each channel."""
    scales = np.array(value.channel.scales if value.channel else value.scale)
    if scales.min(initial=1) < 1 / FAR or scales.max(initial=1) > FAR:
        raise Refused(f"has scales of {scales.min():g} to {scales.max():g}, must be from {1 / FAR:g} to {FAR:g}")
    return scales


class Task(LoweringTask):
    """One operation, and the graph that it is written to."""

    def __init__(self, graph, a, operation):
        super().__init__(a, operation)
        self.graph, self.node, self.constant = graph, graph.node, graph.constant

    def x(self, name):
        return self.graph.real(self.place(name))

    def xs(self):
        return [self.graph.real(place) for argument, _ in self.a.inputs for place in self.places(argument.name)]

    def give(self, y, within=None):
        within = within or bounds(self.a)
        if within != ACTIVATION_RANGE[Activation.NONE]:
            y = self.node("Clip", y, *map(self.constant, within))
        self.graph.give(self.operation.outputs[0], y)

    def image(self, name):
        """A picture as ONNX has it: channels first."""
        return self.x(name) if self.a.nchw else self.node("Transpose", self.x(name), perm=(0, 3, 1, 2))

    def give_image(self, y):
        self.give(y if self.a.nchw else self.node("Transpose", y, perm=(0, 2, 3, 1)))

    def sliding(self):
        """How a filter moves, as attributes."""
        if self.a.form_has("scheme") and self.a.scheme == Padding.SAME and None in self.a.input.dims:
            return {"auto_pad": "SAME_UPPER"}  # for the verdict alone: all is known when the model is prepared
        h, w = window(self.a, "h"), window(self.a, "w")
        found = {"kernel_shape": (h.size, w.size), "strides": (h.stride, w.stride)}
        if self.a.form_has("dilation_h"):
            found["dilations"] = h.dilation, w.dilation
        return found | {"pads": (h.before, w.before, h.after, w.after)}

    def bias(self, weights):
        if not self.a.input.quantised:
            return self.x("bias")
        steps = self.node("Cast", self.graph.stored(self.place("bias")), to=TensorProto.FLOAT)
        return self.node("Mul", steps, self.constant(product_scales(self.a.input, weights)))


SIMPLE = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "LOGISTIC": "Sigmoid", "TANH": "Tanh"}


@table.entry(*SIMPLE)
def simple(t):
    t.give(t.node(SIMPLE[t.name], *t.xs()))


@table.entry("RELU", "RELU1", "RELU6")
def limited(t):
    t.give(t.x("input"), ACTIVATION_RANGE[Activation[t.name]])


@table.entry("DEQUANTIZE", types=frozenset((Q8, Q8S, Q8SYMM, Q8PC)))
def real(t):
    t.give(t.x("input"))


@table.entry("QUANTIZE", types=frozenset((F32, F16)))
def stored(t):
    x = t.x("input")
    t.give(t.node("Where", t.node("IsNaN", x), t.constant(0.0), x))  # NaN counts as 0


@table.entry("CONV_2D", "DEPTHWISE_CONV_2D")
def convolution(t):
    a, depthwise = t.a, t.name == "DEPTHWISE_CONV_2D"
    weights = t.node("Transpose", t.x("filter"), perm=(3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
    groups = a.depth_out // a.depth_multiplier if depthwise else 1
    t.give_image(t.node("Conv", t.image("input"), weights, t.bias(a.filter), group=groups, **t.sliding()))


@table.entry("FULLY_CONNECTED")
def fully_connected(t):
    rows = t.node("Reshape", t.x("input"), t.constant((-1, t.a.input_size), np.int64))
    t.give(t.node("Gemm", rows, t.x("weights"), t.bias(t.a.weights), transB=1))


@table.entry("AVERAGE_POOL_2D", "MAX_POOL_2D")
def pool(t):
    kind = "MaxPool" if t.name == "MAX_POOL_2D" else "AveragePool"
    t.give_image(t.node(kind, t.image("input"), **t.sliding()))


@table.entry("SOFTMAX")
def softmax(t):
    below_peak = t.node("Sub", t.x("input"), t.node("ReduceMax", t.x("input"), axes=[t.a.axis]))
    t.give(t.node("Softmax", t.node("Mul", below_peak, t.constant(t.a.beta)), axis=t.a.axis))


@table.entry("MEAN")
def mean(t):
    axes, keep = {int(axis) % t.a.input.rank for axis in t.array("axes")}, t.a.keep_dims > 0
    y = t.node("ReduceMean", t.x("input"), axes=sorted(axes), keepdims=int(keep))
    t.give(y if keep or len(axes) < t.a.input.rank else t.node("Reshape", y, t.constant([1], np.int64)))


@table.entry("RESHAPE")
def reshape(t):
    t.give(t.node("Reshape", t.x("input"), t.constant(t.array("shape"), np.int64)))


@table.entry("TRANSPOSE")
def transpose(t):
    order = t.array("permutation").tolist() if t.places("permutation") else range(t.a.input.rank)[::-1]
    t.give(t.node("Transpose", t.x("input"), perm=order))


@table.entry("CONCATENATION")
def concatenation(t):
    t.give(t.node("Concat", *t.xs(), axis=t.a.axis))


@table.entry("PAD")
def pad(t):
    t.give(t.node("Pad", t.x("input"), t.constant(t.array("paddings").T.reshape(-1), np.int64)))


class Session(Prepared):
    """A model of known shapes, compiled. The engine takes several executions at once, else it would have a Team."""

    def __init__(self, model, threads):
        graph, options = Graph(model), onnxruntime.SessionOptions()
        table.lower(model, partial(Task, graph))
        options.intra_op_num_threads = threads or usable_cores()
        options.add_session_config_entry("session.disable_quant_qdq", "1")  # its integer kernels round otherwise
        self.session = onnxruntime.InferenceSession(graph.finish(), options, ["CPUExecutionProvider"])
        self.ends = [[f"%{index}" for index in some] for some in (model.main.inputs, model.main.outputs)]

    def run(self, request, control):
        inputs, outputs = self.ends
        feeds, options = dict(zip(inputs, request.inputs, strict=True)), onnxruntime.RunOptions()
        try:
            with control.on_cancel(partial(setattr, options, "terminate", True)):
                results = self.session.run(outputs, feeds, options)
        except Exception:
            control.check()  # where it was stopped
            raise
        for place, y in enumerate(results):
            request.write(place, y)


class OnnxDevice(Device):
    name, version = "onnx", onnxruntime.__version__
    relaxations = ("infinities",)  # MaxPool's start is the least finite number

    def capabilities(self):
        return Capabilities.uniform(0.1)

    def supports(self, model):
        return table.verdicts(model, partial(Task, Graph(model)))

    def prepare(self, model, hints):
        if hints.options:
            raise InvalidArgument(f"onnx: option {min(hints.options)!r} is unknown, there are none")
        return for_each_shape(model, lambda known: Session(known, hints.threads), Interpreter)


device = OnnxDevice
