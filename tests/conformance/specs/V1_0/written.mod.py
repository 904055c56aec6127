# Types as text, names, examples, versions, and the order of operations.
x = Input("x", "TENSOR_FLOAT32", "{2, 2}")
codes = Input("x", "TENSOR_QUANT8_ASYMM", "{2, 2}, 0.5f, 10")
weights = Parameter("w", "TENSOR_FLOAT32", "{2}", [0.1, -2.5]).ShouldNeverBeInternal()
act = Int32Scalar("act", 0)
y = Output("y", "TENSOR_FLOAT32", "{2, 2}")

first = Model().Operation("ADD", x, weights, act).To(y)
Example({x: [1, 2, 3, 4], y: [1.1, -0.5, 3.1, 1.5]})
Example(({x: [0, 0, 0, 0]}, {y: [0.1, -2.5, 0.1, -2.5]}))  # one example with the one before
Example({x: [1, 1, 1, 1], y: [1.1, -1.5, 1.1, -1.5]}, name="named").DisableLifeTimeVariation()
Example({x: [5, 5, 5, 5], y: [0, 0, 0, 0]}, name="wrong").ExpectFailure()

# Written against the order of the data; a name that is taken, and that of an initializer.
inner = Internal("inner", "TENSOR_QUANT8_ASYMM", "{2, 2}, 0.5f, 10")
last = Output("w_init", ("TENSOR_FLOAT32", [2, 2]))
ignored = IgnoredOutput("ignored", ("TENSOR_QUANT8_ASYMM", [2, 2], 0.5, 10))
second = Model("second").Operation("DEQUANTIZE", inner).To(last)
second.Operation("RELU", inner).To([ignored])
second.Operation("RELU", codes).To(inner).IntroducedIn("V1_1")
Example(({codes: [9, 10, 11, 255]}, {last: [0, 0, 0.5, 122.5]}), model=second)
Example(({codes: [1, 2, 3, 4]}, {last: [0, 0, 0, 0]}), model=second).AddVariations("relaxed")

# Inputs and constants that are left out.
empty = Input("empty", ("TENSOR_FLOAT32", [0]))
none = Parameter("none", ("TENSOR_INT32", [0]), None)
z = Output("z", ("TENSOR_FLOAT32", [2]))
third = Model("third").Operation("SQUEEZE", empty, none).To(z)
Example({empty: [], z: [1, 2]}, model=third)

# The output becomes internal; the expected values are those of the ignored kind no more.
drawn = IgnoredOutput("drawn", ("TENSOR_INT32", [1, 2]))
fourth = Model("fourth").Operation("RANDOM_MULTINOMIAL", x, 2, [1, 2]).To(drawn)
Example(({x: [1, 2, 3, 4]}, {}), model=fourth).WithMultinomialDistributionTolerance(0.25)
fifth = Model("fifth").Operation("RELU", codes).To(ignored)
Example(({codes: [9, 10, 11, 255]}, {}), model=fifth).AddVariations(AllOutputsAsInternalCoverter())
sixth = Model("sixth").Operation("MEAN", x, [1], True).Operation("SUB", x, 1.5, ()).To(Output("type", ("TENSOR_FLOAT32", [])))
sixth = Model("sixth").Operation("MEAN", x, [1], True, (2.5,), 0.5).To(z)
Example({x: [1, 2, 3, 5], z: [1.5, 4]}, model=sixth)

Example.SetVersion("V1_2", "written", "written_second")
