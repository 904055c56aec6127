# Every variation, in groups.
x = Input("x", ("TENSOR_FLOAT32", [1, 2, 2, 2]))
w = Parameter("w", ("TENSOR_FLOAT32", [2, 1, 1, 2]), [0.1, 0.26, 1.5, -0.8])
b = Parameter("b", ("TENSOR_FLOAT32", [2]), [0.03, 100.0])
pad = Int32Vector("pad", [0, 1, 2, 3])
layout = BoolScalar("layout", False)
act = Int32Scalar("act", 0)
y = Output("y", ("TENSOR_FLOAT32", [1, 2, 2, 2]))
Model().Operation("CONV_2D", x, w, b, 0, 0, 0, 0, 1, 1, act, layout, pad).To(y)

quant8 = DataTypeConverter().Identify({
    x: ("TENSOR_QUANT8_ASYMM", 0.5, 128),
    w: ("TENSOR_QUANT8_ASYMM", 0.01, 100),
    b: ("TENSOR_INT32", 0.005, 0),
    y: ("TENSOR_QUANT8_ASYMM", 0.25, 3),
})
channels = SymmPerChannelQuantParams(channelDim=0, scales=[0.003, 0.25])
hidden = SymmPerChannelQuantParams(channelDim=0, scales=[0.015, 0.125], hide=True)
channelQuant8 = DataTypeConverter(name="by_channel").Identify({
    x: ("TENSOR_QUANT8_ASYMM_SIGNED", 0.5, -1),
    w: ("TENSOR_QUANT8_SYMM_PER_CHANNEL", 0, 0, channels),
    b: ("TENSOR_INT32", 0.0, 0, hidden),
    y: ("TENSOR_QUANT8_ASYMM_SIGNED", 0.25, 3),
})
values = {x: [0.5, -1.25, 2.75, 3, 200, -200, 7.1, 0], y: [-2, -1, -0.5, 0, 0.5, 1, 5, 9]}
Example(values).AddNchw(x, y, pad, layout).AddVariations(quant8, channelQuant8, "float16", "relaxed")
Example(values, name="act").AddAllActivations(y, act).AddVariations(quant8, includeDefault=False)
Example(values, name="twice").AddVariations(("relu6", [y, act]), ("nchw", [x, y, layout]), defaultName="plain").AddRelaxed(False)

axis = Int32Scalar("axis", -1)
a = Input("a", ("TENSOR_FLOAT32", [2, 1, 3]))
c = Output("c", ("TENSOR_FLOAT32", [2, 1, 3]))
Model("axes").Operation("SOFTMAX", a, 1.0, axis).To(c)
data = {a: [1, 2, 3, 4, 5, 6], c: [6, 5, 4, 3, 2, 1]}
Example(data).AddAllDimsAndAxis(a, c, axis)
Example(data, name="to").AddAxis([0, -2], a, c, axis, includeDefault=False).DisableLifeTimeVariation()
Example(data, name="dims").AddDims([1, 2], a, c, axis).DisableLifeTimeVariation()
Example(data, name="positive").AddAllPositiveAxis(a, c, axis).DisableLifeTimeVariation()
Example(data, name="all").AddAllAxis(a, c, axis).AddRelaxed(defaultName="exact").DisableLifeTimeVariation()
Example(data, name="ranks").AddAllDims(a, c).DisableLifeTimeVariation()
Example(data, name="both").AddAllDimsAndPositiveAxis(a, c, axis).DisableLifeTimeVariation()
Example(data, name="relu").AddRelu(c, defaultName="none").DisableLifeTimeVariation()
