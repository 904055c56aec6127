"""One vector in the published form, written out: what its model, inputs and expected outputs are, in each variant."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import Lifetime, OperandType
from nnhal.base.errors import InvalidArgument
from nnhal.base.levels import Level
from nnhal.conformance.vectors import Expected, Vector, index, members, read

STEPS = np.uint8([0, 128, 255]).tobytes()
REAL = np.float32([1.5, -2, 3]).tobytes()
SCALE = np.float32([0.5]).tobytes()
BLOB = bytes(8) + STEPS + bytes(5) + REAL + SCALE  # at 8, 16, 28


def operand(kind: str, lifetime: str, *dimensions: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "lifetime": lifetime, "dimensions": list(dimensions), **more}


def vector(**more: Any) -> Vector:
    """y = DEQUANTIZE(x), and its graph's other numbers."""
    operands = [
        operand("TENSOR_QUANT8_ASYMM", "SUBGRAPH_INPUT", 3, scale=0.5, zeroPoint=130, data=[8, 3], name="x"),
        operand("TENSOR_FLOAT32", "SUBGRAPH_OUTPUT", 3, data=[16, 12], name="y"),
    ]
    operations = [{"type": "DEQUANTIZE", "inputs": [0], "outputs": [1]}]
    main = {"operands": operands, "operations": operations, "inputIndexes": [0], "outputIndexes": [1]}
    return Vector("V1_3/by_hand/one", {"name": "one", "main": main} | more, BLOB)


def test_a_vector_gives_its_model_and_arrays() -> None:
    one = vector()
    x, y = one.model().main.operands
    assert (x.type, x.dimensions, x.scale, x.zero_point) == (OperandType.TENSOR_QUANT8_ASYMM, (3,), 0.5, 130)
    assert (x.lifetime, y.lifetime) == (Lifetime.SUBGRAPH_INPUT, Lifetime.SUBGRAPH_OUTPUT)
    assert (y.type, y.dimensions) == (OperandType.TENSOR_FLOAT32, (3,)) and not one.model().relaxed
    assert one.inputs()[0].tolist() == [0, 128, 255] and one.inputs()[0].dtype == np.uint8
    (expected,) = one.expected()
    assert expected.data.tolist() == [1.5, -2, 3] and expected.shape == (3,) and not expected.ignored
    assert (expected.scale, expected.zero_point, expected.type) == (0, 0, OperandType.TENSOR_FLOAT32)


def test_a_dynamic_variant_has_outputs_of_unknown_dimensions_and_no_other_operand() -> None:
    x, y = vector().model(dynamic=True).main.operands
    assert (x.dimensions, y.dimensions) == ((3,), (0,))


def test_a_signed_variant_is_128_lower_and_floats_are_as_they_are() -> None:
    one = vector()
    x, y = one.model(signed=True).main.operands
    assert (x.type, x.scale, x.zero_point) == (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 0.5, 2)
    assert y.type == OperandType.TENSOR_FLOAT32 and y.zero_point == 0
    assert one.inputs(signed=True)[0].tolist() == [-128, 0, 127] and one.inputs(signed=True)[0].dtype == np.int8
    assert one.expected(signed=True)[0].data.tolist() == [1.5, -2, 3]
    one.test["main"]["outputIndexes"] = [0]
    wanted = one.expected(signed=True)[0]
    assert (wanted.type, wanted.scale, wanted.zero_point) == (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 0.5, 2)
    plain = one.expected()[0]
    assert (plain.type, plain.zero_point) == (OperandType.TENSOR_QUANT8_ASYMM, 130)
    assert plain.data.tolist() == [0, 128, 255]


def test_what_is_not_stated_is_no() -> None:
    one = vector()
    assert (one.level, one.expect_failure, one.multinomial, one.half_precision) == (None, False, 0, False)
    assert one.operations == {"DEQUANTIZE"}


def test_what_is_stated_holds() -> None:
    one = vector(expectFailure=True, isRelaxed=True, expectedMultinomialDistributionTolerance=0.25)
    assert (one.expect_failure, one.multinomial, one.half_precision) == (True, 0.25, True)
    assert one.model().relaxed
    one.test["main"]["operands"][1]["isIgnored"] = True
    assert one.expected()[0].ignored
    for text, level in {"V1_0": Level.V1_0, "V1_3": Level.V1_3, "AIDL_V1": Level.FL5, "AIDL_V2": Level.FL6,
                        "AIDL_V3": Level.FL7}.items():  # fmt: skip
        assert vector(minSupportedVersion=text).level == level


def test_one_float16_operand_of_any_graph_makes_results_half_precise() -> None:
    half = operand("TENSOR_FLOAT16", "TEMPORARY_VARIABLE", 3)
    assert vector(referenced=[{"operands": [half], "operations": [{"type": "FLOOR"}]}]).half_precision
    one = vector(referenced=[{"operands": [], "operations": [{"type": "FLOOR"}]}])
    assert not one.half_precision and one.operations == {"DEQUANTIZE", "FLOOR"}
    one.test["main"]["operands"].append(half)
    assert one.half_precision


def test_constants_have_their_data_omitted_operands_none_and_scales_by_channel_are_float32() -> None:
    one = vector()
    main = one.test["main"]
    main["operands"] += [
        operand("TENSOR_FLOAT32", "CONSTANT_COPY", 1, data=[28, 4], name="c"),
        operand("TENSOR_FLOAT32", "NO_VALUE"),
        operand("TENSOR_QUANT8_SYMM_PER_CHANNEL", "TEMPORARY_VARIABLE", 1, 2,
                channelQuant={"scales": [0.1, 0.2], "channelDim": 1}),
        operand("TENSOR_FLOAT32", "CONSTANT_REFERENCE", 3, data=[16, 12]),
    ]  # fmt: skip
    model = one.model()
    _, _, c, none, by_channel, reference = model.main.operands
    assert model.constant(c).tolist() == [0.5] and model.constant(reference).tolist() == [1.5, -2, 3]
    assert none.lifetime == Lifetime.NO_VALUE
    assert by_channel.channel.axis == 1 and by_channel.channel.scales == (
        float(np.float32(0.1)),
        float(np.float32(0.2)),
    )
    main["inputIndexes"] = [0, 3]
    assert one.inputs()[1] is None
    del main["operands"][2]["data"]
    with pytest.raises(InvalidArgument, match="V1_3/by_hand/one: constant 'c' has no data"):
        one.model()


def folder(path: Path, **archives: list[str]) -> Path:
    """Zips with a specification for each name."""
    for version, names in archives.items():
        with zipfile.ZipFile(path / f"{version}.zip", "w") as archive:
            for name in names:
                test = vector().test
                document = {
                    "version": version,
                    "spec": name,
                    "blob": f"{name}.bin",
                    "tests": [test, test | {"name": "two"}],
                }
                archive.writestr(f"{name}.json", json.dumps(document))
                archive.writestr(f"{name}.bin", BLOB)
    return path


def test_a_folder_is_read_zip_by_zip_and_its_index_by_id(tmp_path: Path) -> None:
    folder(tmp_path, V1_1=["c"], V1_0=["b", "a"])
    assert [(archive.name, name) for archive, name in members(tmp_path)] == [
        ("V1_0.zip", "b.json"), ("V1_0.zip", "a.json"), ("V1_1.zip", "c.json"),
    ]  # fmt: skip
    assert [v.id for v in read(tmp_path)] == [
        f"{spec}/{name}" for spec in ("V1_0/b", "V1_0/a", "V1_1/c") for name in ("one", "two")
    ]
    assert [v.inputs()[0].tolist() for v in read(tmp_path)] == [[0, 128, 255]] * 6
    (tmp_path / "index.json").write_text(json.dumps({"tests": [{"id": "V1_0/b/one", "primary": "ADD"}]}))
    assert index(tmp_path) == {"V1_0/b/one": {"id": "V1_0/b/one", "primary": "ADD"}}


def test_a_folder_without_vectors_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"index\.json does not exist, must be in a folder of test vectors"):
        index(tmp_path)
    with pytest.raises(InvalidArgument, match=r"holds no \.zip files, must be a folder of test vectors"):
        members(tmp_path)


def test_a_vector_of_several_graphs_has_them_by_their_numbers_and_unknown_dimensions_in_the_main_one_alone() -> None:
    def graph(operation: str, *operands: dict[str, Any]) -> dict[str, Any]:
        last = len(operands) - 1
        operations = [{"type": operation, "inputs": [*range(last)], "outputs": [last]}]
        inputs = [n for n, each in enumerate(operands) if each["lifetime"] == "SUBGRAPH_INPUT"]
        return {"operands": list(operands), "operations": operations, "inputIndexes": inputs, "outputIndexes": [last]}

    steps = operand("TENSOR_QUANT8_ASYMM", "SUBGRAPH_INPUT", 3, scale=0.5, zeroPoint=130)
    real = operand("TENSOR_FLOAT32", "SUBGRAPH_OUTPUT", 3)
    branch = graph("DEQUANTIZE", steps, real)
    condition = operand("TENSOR_BOOL8", "SUBGRAPH_INPUT", 1)
    first, second = operand("SUBGRAPH", "SUBGRAPH"), operand("SUBGRAPH", "SUBGRAPH", subgraph=1)
    one = vector(main=graph("IF", condition, first, second, steps, real), referenced=[branch, branch])
    assert one.operations == {"IF", "DEQUANTIZE"}
    model = one.model(dynamic=True, signed=True)
    assert [model.main.operands[i].location.offset for i in (1, 2)] == [0, 1]
    assert model.main.inputs == (0, 3) and model.main.outputs == (4,)
    assert model.main.operands[4].dimensions == (0,)
    assert len(model.referenced) == 2
    for sub in model.referenced:
        assert (sub.inputs, sub.outputs) == ((0,), (1,)) and len(sub.operations) == 1
        assert [each.dimensions for each in sub.operands] == [(3,), (3,)]
        assert sub.operands[0].type == OperandType.TENSOR_QUANT8_ASYMM_SIGNED and sub.operands[0].zero_point == 2
    assert [model.main.operands[i].location.offset for i in (1, 2)] == [0, 1]


def test_an_expected_output_is_not_quantised_where_nothing_else_is_said() -> None:
    expected = Expected(None, (), OperandType.TENSOR_FLOAT32, False)
    assert (expected.scale, expected.zero_point) == (0, 0)
