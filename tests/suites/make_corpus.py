"""Writes the corpus of the suite fuzz from the models and messages of the tests: `python -m tests.suites.make_corpus`.

Equal files make equal archives, byte by byte.
"""

import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, "docs")  # which tests import from, as pytest does

from nnhal import api
from nnhal.conformance.suites.fuzz.inputs import CORPUS
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport.packets import pack
from nnhal.model.file import write_model
from nnhal.zoo import maker
from tests.frontends import (
    cases,
    test_onnx_control,
    test_onnx_estimators,
    test_onnx_nodes,
    test_onnx_quantised,
    test_onnx_trees,
    test_tflite_composed,
    test_tflite_files,
    test_tflite_layers,
    test_tflite_newer,
    test_tflite_operators,
    test_tflite_quantised,
    test_tflite_states,
)
from tests.frontends.onnx_models import model
from tests.ipc.golden import CALLBACKS, CALLS, REPLIES

MOST = 8 << 10  # bytes of a file
MODELS = 40  # `.nnhal` files, made of the `.tflite` files


def tflite_files() -> tuple[bytes, ...]:
    """Return files of every operator that is imported, of states, branches, loops, and a few whole models."""
    listed = (*test_tflite_operators.ELEMENTS, *test_tflite_operators.MOVES, *test_tflite_layers.LAYERS)
    listed = (*listed, *test_tflite_composed.CASES, *test_tflite_newer.NEWER)
    files = [cases.file_of(*case)[0] for case in listed]
    states = test_tflite_states
    for cifg, norms, projection in ((False, False, True), (True, True, False)):
        for name, options in (
            ("UNIDIRECTIONAL_SEQUENCE_LSTM", "UnidirectionalSequenceLSTM"),
            ("LSTM", "LSTM"),
        ):
            sequence = name != "LSTM"
            files.append(states.lstm(name, options, cifg=cifg, norms=norms, sequence=sequence, projection=projection))
    newer, parts = test_tflite_newer, {"cifg": False, "peepholes": False, "norms": False}
    files += [newer.windows_of("STABLEHLO_ADD"), newer.composite()]
    files += [newer.scattered("ADD", constant=constant) for constant in (False, True)]
    for projection in (0, 4):
        files.append(
            test_tflite_quantised.lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", (2, 3, 5), projection=projection, **parts)
        )
    files += [states.counter(), states.branches(), test_tflite_files.sparse()]
    files += [states.loop("ADD"), states.loop("CONCATENATION")]
    files += [maker.make(name) for name in ("add4", "tiny_conv", "tiny_conv_int8", "tiny_conv_uint8", "tiny_lstm")]
    return tuple(files)


def onnx_files() -> tuple[bytes, ...]:
    """Return files of a third of the node tests, of quantised layers, loops and branches."""
    made = []
    for case in test_onnx_nodes.CASES[::3]:
        nodes, inputs, constants, outputs, opset = case.values
        made.append(model(nodes, inputs, constants, outputs, opset))
    made.append(test_onnx_quantised.layer_between("Conv", np.uint8, np.int8, (4, 3, 3, 3), (1, 3, 6, 5), channels=4)[0])
    made.append(test_onnx_control.pictures(2)[0])
    made += test_onnx_estimators.a_file_of_each()
    made.append(test_onnx_trees.ensemble("Classifier", {"classlabels_int64s": [7, 3, 12]}, ids=[0, 1, 2]))
    real = np.ones(3, np.float32)
    loop = test_onnx_control.node("Loop", "n go x", body=test_onnx_control.loop_body())
    constants = {"n": np.array(3, np.int64), "go": np.array(True)}
    made.append(model([loop], {"x": real, "k": real}, constants))
    branch = test_onnx_control.node("If", "c", **test_onnx_control.BRANCHES)
    made.append(model([branch], {"c": np.array(True), "x": real, "z": real}))
    return tuple(each.SerializeToString() for each in made)


def wire_messages() -> Iterator[bytes]:
    """Yield each kind of message, alone and in a packet."""
    for number, several in enumerate((CALLS, REPLIES, CALLBACKS)):
        for message, _ in several:
            encoded = wire.encode(message)
            yield bytes([number]) + encoded
            yield bytes([number + 4]) + pack(encoded)


def model_files() -> Iterator[bytes]:
    """Yield `.nnhal` files."""
    files = [file for file in tflite_files() if len(file) < MOST]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.nnhal")
        for file in files[:: max(1, len(files) // MODELS)]:
            write_model(api.load(file), path)
            yield path.read_bytes()


def write(target: str, inputs: Iterable[bytes]) -> None:
    """Write an archive of the different inputs that are small."""
    found = [each for each in dict.fromkeys(inputs) if len(each) <= MOST]
    with zipfile.ZipFile(CORPUS / f"{target}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for number, each in enumerate(found):
            archive.writestr(zipfile.ZipInfo(f"{number:04}"), each, zipfile.ZIP_DEFLATED)
    print(f"{target}: {len(found)} inputs, {(CORPUS / f'{target}.zip').stat().st_size:,} bytes")


def main() -> None:
    """Write all archives."""
    write("wire", wire_messages())
    write("model", model_files())
    write("tflite", tflite_files())
    write("onnx", onnx_files())


if __name__ == "__main__":
    main()
