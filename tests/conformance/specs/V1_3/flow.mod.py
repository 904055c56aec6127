# Control flow: models that operands refer to, a model in a model, types of all of them, shared memory.
KIND = ("TENSOR_FLOAT32", [2])


def small(types):
  return DataTypeConverter().Identify(types)


def branch(operation, other=None):
  a, b, out = Input("a", KIND), Input("b", KIND), Output("out", KIND)
  model = Model().IdentifyInputs(a, b).IdentifyOutputs(out)
  if other is None:
    model.Operation(operation, a, b, 0).To(out)
  else:
    model.Operation("IF", Parameter("true", ("TENSOR_BOOL8", [1]), [True]), other, other, a, b).To(out)
  converted = {a: ["TENSOR_QUANT8_ASYMM", 0.5, 9], b: ["TENSOR_QUANT8_ASYMM", 0.5, 9], out: ["TENSOR_QUANT8_ASYMM", 1.0, 0]}
  return SubgraphReference(operation.lower(), model), small(converted)


for shared in (False, True):
  Configuration.use_shm_for_weights = shared
  name = "shared" if shared else "copied"
  x, y, z = Input("x", KIND), Parameter("y", KIND, [0.5, 300]), Output("z", KIND)
  when = Input("when", ("TENSOR_BOOL8", [1]))
  add, add8 = branch("ADD")
  nested, nested8 = branch("MUL", branch("SUB")[0])
  model = Model(name).Operation("IF", when, add, nested, x, y).To(z)
  quant8 = small({x: ["TENSOR_QUANT8_ASYMM", 0.5, 9], y: ["TENSOR_QUANT8_ASYMM", 0.5, 9], z: ["TENSOR_QUANT8_ASYMM", 1.0, 0],
                  add: add8, nested: nested8})
  Example({x: [1, 2], when: [True], z: [1.5, 302]}, name="yes").AddVariations("relaxed", "float16", quant8)

n, total = Input("n", ("TENSOR_INT32", [1])), Output("total", ("TENSOR_INT32", []))


def condition():
  i, s, go = Input("i", ("TENSOR_INT32", [1])), Input("s", ("TENSOR_INT32", [])), Output("go", ("TENSOR_BOOL8", [1]))
  return Model("while").IdentifyInputs(i, s).IdentifyOutputs(go).Operation("GREATER", i, [0]).To(go)


def body():
  i, s = Input("i", ("TENSOR_INT32", [1])), Input("s", ("TENSOR_INT32", []))
  less, more = Output("less", ("TENSOR_INT32", [1])), Output("more", ("TENSOR_INT32", [0]))
  model = Model().IdentifyInputs(i, s).IdentifyOutputs(less, more)
  return model.Operation("ADD", s, i, 0).To(more).Operation("SUB", i, [1], 0).To(less)


ends, goes = condition(), body()
Model().Operation("WHILE", ends, goes, n, [0]).To(total)
Example({n: [3], total: [6]}).DisableLifeTimeVariation()
