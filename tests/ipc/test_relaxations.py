"""What a device says that its results may do: behind wrappers, in another process, on the command line."""

import json
from pathlib import Path

from nnhal.base.levels import FL8, V1_0
from nnhal.hal.device import RELAXATIONS
from nnhal.hal.wrappers import WithHalLevel
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.runtime import discovery
from tests.cli.test_cli import nnhal
from tests.ipc.support import own_process

DRIVER = """
from nnhal.drivers.reference import Reference
class Relaxed(Reference):
    name, relaxations, extensions = "relaxed", ("subnormals", "infinities"), ()
device = Relaxed
"""


def test_what_a_driver_says_of_its_results_is_known_outside_of_its_process(tmp_path: Path) -> None:
    file = tmp_path / "relaxed.py"
    file.write_text(DRIVER)
    with own_process(str(file)) as remote:
        assert tuple(remote.relaxations) == ("subnormals", "infinities")
        assert tuple(remote.extensions) == ()
    device = ReconnectingDevice("relaxed", lambda: start(str(file)))
    try:
        assert tuple(device.relaxations) == ("subnormals", "infinities")
    finally:
        device.close()


def test_a_wrapped_device_has_the_relaxations_of_the_one_inside() -> None:
    (litert,) = discovery.select(["litert"])
    assert tuple(WithHalLevel(litert, V1_0).relaxations) == ("float16", "infinities", "long_sums", "subnormals")
    assert tuple(WithHalLevel(discovery.cpu(), FL8).relaxations) == ()


def test_devices_say_what_their_results_may_do() -> None:
    names = {entry["name"]: entry for entry in json.loads(nnhal("devices", "--no-isolation", "--json"))}
    assert names["reference"]["relaxations"] == []
    assert names["litert"]["relaxations"] == ["float16", "infinities", "long_sums", "subnormals"]
    text = " ".join(nnhal("devices", "litert", "--no-isolation", "--verbose").split())
    assert all(RELAXATIONS[name] in text for name in names["litert"]["relaxations"])
    assert "Numeric exceptions none" in " ".join(nnhal("devices", "reference", "--no-isolation").split())


def test_a_failed_vector_is_exit_code_1(vectors: Path, tmp_path: Path) -> None:
    """A driver that turns one bit over."""
    file = tmp_path / "wrong.py"
    file.write_text(
        "from nnhal.drivers.reference import Reference\n"
        "class Wrong(Reference):\n"
        "    name = 'wrong'\n"
        "    def prepare(self, model, hints):\n"
        "        prepared = super().prepare(model, hints)\n"
        "        inner = prepared.run\n"
        "        def run(request, control):\n"
        "            right = prepared.request(request.given)\n"
        "            right.execute(inner, control)\n"
        "            request.write(0, right.results[0] ^ 64)\n"
        "        prepared.run = run\n"
        "        return prepared\n"
        "device = Wrong\n"
    )
    selected = (
        *("test", "vectors", "--vectors", str(vectors)),
        "--driver",
        str(file),
        "--filter",
        "V1_0/add_quant8/",
        "--published-only",
        "--jobs",
        "1",
    )
    document = json.loads(nnhal(*selected, "--json", code=1))
    assert document["totals"]["failed"] > 0 == document["totals"]["passed"]
    assert "FAIL " in nnhal(*selected, code=1)
