"""AOSP's test specifications: what they become, what they must not do, and what is said about a wrong one."""

import json
import os
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnhal.base.errors import InvalidArgument, ResourceExhausted
from nnhal.conformance.specs import process
from nnhal.conformance.specs.archive import BuiltVectors, build
from nnhal.conformance.specs.comparison import compare
from nnhal.conformance.specs.process import SpecReader
from nnhal.conformance.specs.source import read
from nnhal.conformance.suites.run import repeat_command
from nnhal.conformance.suites.suite import CaseOutcome, SuiteRun
from nnhal.conformance.vectors import Vector, index
from nnhal.conformance.vectors import read as read_vectors
from tests.cli.test_cli import nnhal

SPECS = Path(__file__).parent / "specs"
ADD = """\
x = Input("x", ("TENSOR_FLOAT32", [2]))
y = Output("y", ("TENSOR_FLOAT32", [2]))
Model().Operation("ADD", x, [1.0, 2.0], 0).To(y)
"""
DATA = "Example({x: [1, 2], y: [2, 4]})\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "vectors"
    assert written(SPECS, folder) == BuiltVectors(4, 204, [], [])
    return folder


def written(specs: Path, folder: Path) -> BuiltVectors:
    *_, last = build(specs, folder)
    assert isinstance(last, BuiltVectors)
    return last


def evaluated(text: str, version: str = "V1_2") -> list[Vector]:
    document, blob = read("own.mod.py", text, version, "own")
    return [Vector(test["name"], test, blob) for test in document["tests"]]


def as_generated(vector: Vector) -> dict[str, Any]:
    """A test as AOSP's generator has it; expected.txt was made of that."""
    test = vector.test

    def operand(o: dict[str, Any]) -> list[Any]:
        channels = o.get("channelQuant")
        stated = [o["name"], o["type"], o["dimensions"], o.get("scale", 0.0), o.get("zeroPoint", 0), o["lifetime"]]
        stated += [o.get("isIgnored", False), channels and [channels["channelDim"], channels["scales"]]]
        offset, length = o.get("data", (0, 0))
        return [*stated, o.get("subgraph", vector.blob[offset : offset + length].hex() or None)]

    return {
        "version": test.get("minSupportedVersion"),
        "relaxed": test.get("isRelaxed", False),
        "fails": test.get("expectFailure", False),
        "tolerance": test.get("expectedMultinomialDistributionTolerance", 0),
        "graphs": [
            {
                "operands": [operand(o) for o in graph["operands"]],
                "operations": [[o["type"], o["inputs"], o["outputs"]] for o in graph["operations"]],
                "inputs": graph["inputIndexes"],
                "outputs": graph["outputIndexes"],
            }
            for graph in (test["main"], *test.get("referenced", ()))
        ],
    }


def test_tests_are_those_of_aosps_generator_in_its_order(built: Path) -> None:
    made = {
        v.id: sha256(json.dumps(as_generated(v), sort_keys=True).encode()).hexdigest()[:16] for v in read_vectors(built)
    }
    expected = dict(line.split()[::-1] for line in (SPECS / "expected.txt").read_text().splitlines())
    assert [id for id in expected if made.get(id) != expected[id]] == [] and list(index(built)) == list(expected)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_specifications_of_aosp_become_the_vectors_that_others_made_of_them(vectors: Path, tmp_path: Path) -> None:
    """NNHAL_SPECS: AOSP's runtime/test/specs."""
    if "NNHAL_SPECS" not in os.environ:
        pytest.skip("NNHAL_SPECS names no folder of AOSP's specifications")
    assert not written(Path(os.environ["NNHAL_SPECS"]), tmp_path / "vectors").errors
    compared = compare(tmp_path / "vectors", vectors)
    print(f"{compared.equal} of {compared.tests} vectors are equal")
    assert compared.tests > 0 and compared.equal == compared.tests, compared


@pytest.mark.parametrize(
    ("id", "flags", "primary"),
    [
        ("V1_0/written/written", ["dynamicOutputShape", "deviceMemory"], "ADD"),
        ("V1_0/written/written_wrong", ["expectFailure"], "ADD"),
        ("V1_0/written/written_third", ["omittedInput", "noValue", "dynamicOutputShape", "deviceMemory"], "SQUEEZE"),
        (
            "V1_0/written/written_fourth",
            ["multinomial", "ignoredOutput", "dynamicOutputShape", "deviceMemory"],
            "RANDOM_MULTINOMIAL",
        ),
        (
            "V1_0/written/written_fifth",
            ["ignoredOutput", "dynamicOutputShape", "quantCoupling", "deviceMemory"],
            "RELU",
        ),
        (
            "V1_0/written/written_fifth_all_inputs_as_internal",
            ["ignoredOutput", "dynamicOutputShape", "deviceMemory"],
            "RELU",
        ),
        ("V1_0/written/written_second", ["ignoredOutput", "dynamicOutputShape", "deviceMemory"], None),
        ("V1_2/varied/varied_nhwc_by_channel", ["perChannel", "dynamicOutputShape", "deviceMemory"], "CONV_2D"),
        ("V1_3/flow/flow_copied_yes_float16", ["controlFlow", "float16", "deviceMemory"], "IF"),
        ("V1_3/flow/flow", ["controlFlow", "unspecifiedDims", "deviceMemory"], "WHILE"),
    ],
)
def test_the_index_states_how_a_test_runs(built: Path, id: str, flags: list[str], primary: str | None) -> None:
    entry = index(built)[id]
    assert entry["flags"] == flags and entry.get("primary") == primary


def test_the_specification_of_the_documentation_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "drivers" / "test-vectors.md").read_text()
    made = evaluated(page.partition("```python\n")[2].partition("```")[0])
    variations = ["", "_relaxed", "_float16", "_quant8"]
    assert [v.id for v in made] == [f"own{v}{w}" for v in variations for w in ("", "_all_inputs_as_internal")]


def test_equal_specifications_make_equal_files(built: Path, tmp_path: Path) -> None:
    written(SPECS, tmp_path / "again")
    for file in sorted(built.iterdir()):
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_data_lies_at_multiples_of_eight_and_equal_data_once(built: Path) -> None:
    for vector in read_vectors(built):
        graphs = [vector.test["main"], *vector.test.get("referenced", ())]
        places = [operand["data"] for graph in graphs for operand in graph["operands"] if "data" in operand]
        contents = {tuple(place): vector.blob[place[0] : sum(place)] for place in places}
        assert not any(offset % 8 for offset, _ in places) and len(set(contents.values())) == len(contents)


def test_constants_become_inputs_where_a_specification_names_them() -> None:
    text = 'w = Parameter("w", ("TENSOR_FLOAT32", [2]), [1, 2])\n' + ADD.replace("[1.0, 2.0]", "w") + DATA.strip()
    names = [v.id for v in evaluated(text + ".AddInput(w).DisableLifeTimeVariation()\n")]
    assert names == ["own", "own_weight_as_input"]
    (given,) = evaluated(text + '.AddVariations(("as_input", [w]), includeDefault=False).DisableLifeTimeVariation()\n')
    assert [array is not None and array.tolist() for array in given.inputs()] == [[1, 2], [1, 2]]


HOSTILE = [
    "import os",
    "import numpy.lib",
    "from os import environ",
    "from numpy import load",
    "open('/etc/passwd')",
    "eval('1')",
    "getattr(x, 'name')",
    "().__class__",
    "x.__init__.__globals__",
    "x._name",
    "Model()._maker",
    "super(np.float64, np.float64(1)).tobytes()",
    "Model().copy.__globals__",
    "__builtins__",
    "global __builtins__",
    "lambda __x: 0",
    "'{0.name}'.format(x)",
    "str.format('{0.__class__}', x)",
    "np.load('/etc/passwd')",
    "np.fromfile('/etc/passwd')",
    "np.memmap('/etc/passwd')",
    "np.zeros(1).tofile('/tmp/x')",
    "np.zeros(1).dump('/tmp/x')",
    "np.zeros(1).ctypes",
    "np.zeros(1).data",
    "np.zeros(1, dtype=int).view('O')",
    "np.random.get_state()",
    "type(np.zeros(1))((1,), 'O', b'12345678')",
    "type(type(1))('A', (), {})",
    "type(lambda: 0)",
    "class A(type(np.zeros(1))): pass",
    "class A(np.float32): pass",
    "class A(object, np.float32): pass",
    "import operator\noperator.attrgetter('__class__')",
    "class A(metaclass=type): pass",
    "class A:\n  def __getattr__(self, name): pass",
    "class A:\n  __array_interface__ = {}",
    "class A: pass\nA.__array_interface__ = {}",
    "DataTypeConverter.known = ()",
    "np.zeros = 1; np.zeros(1).shape = 2",
    "(i for i in []).gi_frame",
    "try:\n  x.y\nexcept Exception as e:\n  e.__traceback__",
    "with x: pass",
    "async def f(): pass",
    "match x:\n  case str(__class__=c): pass",
    "[0 for x.value in [1]]",
    "x.value, y = 1, 2",
    "del x.value",
    "f'{x.__class__}'",
    "exit()",
]


@pytest.mark.parametrize("statement", HOSTILE)
def test_a_specification_reaches_nothing_but_the_language(statement: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^own\.mod\.py:\d+: "):
        evaluated(f"import numpy as np\n{ADD}{statement}\n{DATA}")


def test_specifications_of_android_10_and_11_are_read() -> None:
    text = ADD + 'z = Output("z", ("TENSOR_FLOAT32", [0]))\nModel().Operation("RELU", x).To(z)\n'
    text += "Example({x: np.ones(2).tolist(), z: [math.pi]}).DisableDynamicOutputShapeVariation()\n"
    vector, _ = evaluated(text)
    assert vector.expected()[0].data is None and vector.expected()[0].shape == (0,)


def test_a_data_type_may_stand_alone_and_names_may_be_numbers() -> None:
    text = ADD.replace('Input("x"', "Input(7").replace("Model()", "Model(8)")
    change = "DataTypeConverter().Identify({x: 'TENSOR_FLOAT16', y: ['TENSOR_FLOAT16']})"
    text += DATA.replace("})", "}, name=0)").strip() + f".DisableLifeTimeVariation().AddVariations({change})"
    first, second = evaluated(text)
    assert (first.id, second.id) == ("own_8_0", "own_8_0_float16")
    named = [(operand["name"], operand["type"]) for operand in second.test["main"]["operands"]]
    assert ("7", "TENSOR_FLOAT16") in named and ("y", "TENSOR_FLOAT16") in named


def test_plain_python_works() -> None:
    text = """
import operator
class Counter(object):
  def __init__(self):
    self.count = 0
  def next(self):
    self.count = self.count + 1
    return self.count
try:
  [].pop()
except IndexError as error:
  counter = Counter()
data = [operator.mul(counter.next(), ord("a") // 97), counter.next()]
"""
    assert len(evaluated(text + ADD + DATA.replace("x: [1, 2]", "x: data"))) == 2


def test_a_variation_looks_at_operands_and_types_as_in_aosps_generator() -> None:
    text = (
        ADD.replace("Model()", "model = Model()")
        + """
class Tripled(RelaxedModeConverter):
  def TransformModel(self, model):
    for op in model.GetInputs() + model.GetOutputs():
      op.SetValueFromNumpy(op.GetValueAsNumpy() * 3)
    for op in model.operands:
      if isinstance(op, (Parameter, Internal)) and not op.type.IsScalar():
        op.SetValue([3 * value for value in op.value])
    return model
kinds = Input, Output, IgnoredOutput, Parameter, Int32Scalar, Float32Vector, BoolScalar
found = ["".join("01"[isinstance(op, kind)] for kind in kinds) for op in model.operands]
assert found == ["1000000", "0001010", "0001100", "0100000"], found
assert [op.type.GetNumberOfElements() for op in model.operands] == [2, 2, 1, 2]
assert x.type.IsFloat() and not x.type.IsBool()
"""
    )
    text += DATA.strip() + ".AddVariations(Tripled(name='t'), includeDefault=False).DisableLifeTimeVariation()\n"
    (vector,) = evaluated(text)
    (given,), (expected,) = vector.inputs(), vector.expected()
    assert given is not None and given.tolist() == [3, 6]
    assert expected.data is not None and expected.data.tolist() == [6, 12]
    offset, length = next(o["data"] for o in vector.test["main"]["operands"] if o["name"] == "param")
    assert np.frombuffer(vector.blob[offset : offset + length], np.float32).tolist() == [3, 6]


@pytest.fixture
def reader() -> Iterator[SpecReader]:
    found = SpecReader(seconds=2)
    yield found
    found.close()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "V1_2").mkdir()
    return tmp_path / "V1_2" / "own.mod.py"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("while True: pass", "1: evaluation has not ended after 2 s of processor time, must end"),
        ("\nx = [0] * 10 ** 12", "2: MemoryError"),
        ("def f(): f()\nf()", "1: RecursionError: maximum recursion"),
    ],
)
def test_an_endless_or_huge_specification_costs_itself_alone(
    reader: SpecReader, own: Path, text: str, why: str
) -> None:
    own.write_text(text)
    with pytest.raises(InvalidArgument) as error:
        reader.read(own)
    assert str(error.value).startswith(f"{own}:") and why in str(error.value)
    own.write_text(ADD + DATA)
    assert len(reader.read(own)[0]["tests"]) == 2


BROKEN_OPEN = """
from nnhal.conformance.specs import source, process
def read(path, text, version, specification):
    try:
        exec(text)
    except OSError as error:
        return {"tests": error.strerror}, b""
    return {"tests": "done"}, b""
source.read = read
process.serve(%s)
"""


@pytest.mark.parametrize("text", ["open(path)", "import socket; socket.socket()", "import os; os.fork()"])
def test_the_process_that_evaluates_opens_nothing(
    reader: SpecReader, own: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(process, "_CHILD", "import sys" + BROKEN_OPEN % "*map(int, sys.argv[1:])")
    own.write_text(text)
    assert reader.read(own)[0]["tests"] in {"Too many open files", "Operation not permitted", "Permission denied"}


def test_a_process_that_does_not_start_is_no_fault_of_the_specification(
    reader: SpecReader, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_CHILD", "raise SystemExit(3)")
    own.write_text(ADD)
    with pytest.raises(ResourceExhausted, match="ended with 3"):
        reader.read(own)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (", "1: "),
        (ADD.replace("ADD", "AD"), "3: operation is 'AD', must be one of NNAPI's operations"),
        (ADD.replace("FLOAT32", "FLOAT"), "1: operand type is 'TENSOR_FLOAT', must be one of "),
        (ADD.replace("[2]", "2"), "1: dimensions are 2, must be a list"),
        ('Input("x", "TENSOR_FLOAT32", "{a}")', "1: shape is '{a}', must be such as '{2, 3}'"),
        (ADD.replace("x, [1", "x, None, [1"), "3: operand is None, must be an operand, a number"),
        (ADD.replace(".To(y)", ".To(3)"), "3: operand is 3, must be an operand of this specification"),
        ("Example({})", "1: model of an example is None, must be a Model above it"),
        (ADD + "Example({}, model=x)", "4: model of an example is x, must be a Model above it"),
        (ADD + "SubgraphReference('s', 5)", "4: subgraph of s is 5, must be a Model"),
        (ADD + "Model().IntroducedIn('V9_9')", "4: version is 'V9_9', must be None or one of V1_0, "),
        (ADD + "Example.SetVersion(7, 'own')", "4: version is 7, must be None or one of V1_0, "),
        (ADD + DATA.strip() + ".WithMultinomialDistributionTolerance('a')", "4: tolerance is 'a', must be a number"),
        (ADD + DATA.strip() + ".WithMultinomialDistributionTolerance(-1)", "4: tolerance is -1, must be a number"),
        (ADD + DATA.strip() + ".AddRelu('y')", "4: ActivationConverter names 'y', must name operands"),
        (
            ADD + DATA.strip() + ".AddVariations(DataTypeConverter().Identify([x]))",
            "4: x becomes None, must become such as ('TENSOR_QUANT8_ASYMM', 0.5, 128)",
        ),
        (ADD.replace("[2]", "[None]"), "1: dimensions are [None], must be a list of integers"),
        (
            "Input('x', ('TENSOR_FLOAT32', [1]), extraParams=3)",
            "1: extraParams is 3, must be SymmPerChannelQuantParams",
        ),
        ("\nx = " + "-" * 900 + "1", "2: syntax nests too deeply, must nest less"),
        ("x = " + "-" * 100_000 + "1", "1: syntax nests too deeply, must nest less"),
        ("\nreturn 1", "2: 'return' outside function"),
        (ADD + "Example({x: [1, 2]})", "4: example has no values of y, must have those of inputs and outputs"),
        (ADD + "\nExample(({x: [1, 2]}, {}))", "5: example has no values of y"),
        (ADD + "Example({x: [1], y: [2, 4]})", "4: x has 1 elements, must have 2 for dimensions [2]"),
        (ADD + "Example({x: [1, 2], y: ['two', 4]})", "4: ValueError: could not convert string to float"),
        (
            ADD + "class A(DataTypeConverter):\n  def TransformOperand(self, op, arg=None): return 1 / 0\n"
            "Example({x: [1, 2], y: [2, 4]}).AddVariations(A(name='a').Identify([x]))",
            "6: ZeroDivisionError: division by zero",
        ),
        (ADD + "Example(3)", "4: example is neither a dictionary nor a pair"),
        (ADD + "Example({\n x: [1, 2], y: [2, 4]\n}).AddVariations('float8')", "variation is 'float8', must be"),
        (ADD + DATA.strip() + ".AddNchw(x)", "4: x is TENSOR_FLOAT32 of rank 1, must be of rank 4"),
        (ADD + DATA.strip() + ".AddVariations('quant8')", "4: quant8 has no scale and zeroPoint, must have both"),
        (ADD + "z = Input('z', ('FLOAT32', []))\n" + DATA.strip() + ".AddRelu(z)", "5: ActivationConverter names z"),
        (
            ADD.replace("FLOAT32", "INT32").replace("1.0, 2.0", "1, 2") + DATA.replace("[2, 4]", "[3e9, 1]"),
            "4: y has 3000",
        ),
        (ADD + "Model().IdentifyInputs(x).IdentifyInputs(y)", "4: inputs are [y], must be all"),
        (ADD + "undefined", "4: NameError: name 'undefined'"),
        (
            "Model().Operation('RELU', i := Internal('i', ('TENSOR_FLOAT32', [1]))).To(i)\nExample({})",
            "2: RELU reads its own",
        ),
    ],
)
def test_an_error_has_the_line_and_the_rule(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        evaluated(text)
    assert str(error.value).startswith("own.mod.py:") and message in str(error.value)


@pytest.mark.parametrize(("folder", "version"), [("V1_2", "V1_2"), ("AIDL_V4", "AIDL_V4"), ("V1_3_cts_only", None)])
def test_the_version_is_that_of_the_folder(folder: str, version: str | None) -> None:
    assert {v.test.get("minSupportedVersion") for v in evaluated(ADD + DATA, folder)} == {version}


def test_a_comparison_counts_what_differs_and_what_is_missing(built: Path, tmp_path: Path) -> None:
    for text in (ADD + DATA, ADD + DATA.replace("[2, 4]", "[2, 5]")):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "V1_2").mkdir(parents=True)
        (folder / "V1_2" / "own.mod.py").write_text(text + DATA.replace(")", ", name='more')") * (folder.name == "1"))
        written(folder, folder / "built")
    fewer, more = tmp_path / "0" / "built", tmp_path / "1" / "built"
    compared = compare(fewer, more)
    assert compared.different == ["V1_2/own/own", "V1_2/own/own_all_inputs_as_internal"]
    assert compared.missing == ["V1_2/own/own_more", "V1_2/own/own_more_all_inputs_as_internal"]
    assert (compared.equal, compared.tests) == (0, 4) and compare(fewer, fewer).equal == 2


def test_vectors_are_built_only_where_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(InvalidArgument, match="has x, must be empty or not there"):
        written(SPECS, tmp_path)
    with pytest.raises(InvalidArgument, match=r"has no \.mod\.py file"):
        written(tmp_path, tmp_path / "built")


def test_experimental_operations_are_left_out(own: Path, tmp_path: Path) -> None:
    own.write_text(ADD + DATA)
    (tmp_path / "experimental").mkdir()
    (tmp_path / "experimental" / "own.mod.py").write_text("wrong")
    assert written(tmp_path, tmp_path / "built") == BuiltVectors(1, 2, [], [])


def test_a_specification_without_a_test_is_listed_and_a_folder_without_any_test_is_an_error(
    own: Path, tmp_path: Path
) -> None:
    own.write_text(ADD)
    found = json.loads(nnhal("vectors", str(own.parent), str(tmp_path / "built"), "--json", code=1))
    assert (found["tests"], found["errors"], found["untested"]) == (0, [], [str(own)])
    own.with_name("other.mod.py").write_text(ADD + DATA)
    found = json.loads(nnhal("vectors", str(own.parent), str(tmp_path / "again"), "--json"))
    assert (found["tests"], found["errors"], found["untested"]) == (2, [], [str(own)])


def test_a_wrong_specification_is_an_error_and_the_others_are_written(own: Path, tmp_path: Path) -> None:
    own.write_text(ADD + DATA)
    own.with_name("wrong.mod.py").write_text("x")
    text = nnhal("vectors", str(own.parent), str(tmp_path / "built"), "--compare", str(tmp_path / "built"), code=1)
    assert "2 vectors from 1 specifications" in text and "2 of the 2 vectors in" in text
    with zipfile.ZipFile(tmp_path / "built" / "V1_2.zip") as archive:
        assert archive.namelist() == ["own.json", "own.bin"]


def test_specifications_are_run_without_a_folder_of_vectors(own: Path) -> None:
    own.write_text(ADD + DATA)
    words = "test", "vectors", "--specs", str(own), "--published-only", "--jobs", "1", "--json"
    found = json.loads(nnhal(*words))
    assert found["totals"]["passed"] == 2 and not found["groups"]


def test_a_vector_of_a_specification_is_repeated_from_that_alone(own: Path) -> None:
    own.write_text(ADD + DATA)
    run = SuiteRun(vectors="gone", specs=str(own.parents[1]))
    alone, late = (CaseOutcome("vectors", "V1_2/own/own", "failed", before=ran) for ran in ((), ("V1_2/own/a",)))
    assert repeat_command(run, alone).startswith(f"nnhal test vectors --specs {own} ")
    assert repeat_command(run, late).startswith(f"nnhal test vectors --specs {own.parents[1]} ")
