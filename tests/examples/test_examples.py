"""The examples are what the documentation says."""

import json
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import nnhal
from tests.execution import run_python

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_the_example_driver_is_short():
    code = (EXAMPLES / "my_driver.py").read_text().splitlines()
    assert len(code) <= 40


@pytest.mark.models
def test_the_face_detector_finds_the_face(tmp_path):
    program = [sys.executable, str(EXAMPLES / "find_faces.py"), "--output", str(tmp_path / "faces.png")]
    text = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert "Found 1 face in" in text and "164 on litert" in text
    assert (tmp_path / "faces.png").stat().st_size > 10_000


def test_the_packing_driver_leaves_layers_of_a_constant_input_to_others():
    device = nnhal.load_driver(EXAMPLES / "my_packing_driver.py")
    b = nnhal.Builder()
    x, weights, bias = (b.constant(np.ones(shape, "f4")) for shape in ((1, 3), (2, 3), (2,)))
    model = b.finish([], [b.fully_connected(x, weights, bias)])
    (verdict,) = device.supports(model)
    assert (verdict.ok, verdict.reason) == (False, "the input must not be constant")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kernel", "failed"), [("np.fft.fft", {}), ("np.fft.ifft", {"com.example.fourier.FFT": 1})])
def test_the_extensions_operations_are_validated_by_their_records(tmp_path, kernel, failed):
    driver = tmp_path / "fourier.py"
    source = (EXAMPLES / "my_extension.py").read_text()
    driver.write_text(source.replace('FOURIER.operation("FFT"): np.fft.fft', f'FOURIER.operation("FFT"): {kernel}'))
    program = [sys.executable, "-m", "nnhal.cli.main", "test", "contract", "--driver", str(driver), "--scale", "0.5"]
    done = subprocess.run([*program, "--filter", "^values/", "--json"], capture_output=True, text=True, check=False)
    (suite,) = json.loads(done.stdout)["suites"]
    cases = [case for case in suite["cases"] if case["verdict"] not in ("skipped", "unsupported")]
    assert {case["operation"] for case in cases} == {"com.example.fourier.FFT", "com.example.fourier.ABSOLUTE"}
    assert Counter(case["operation"] for case in cases if case["verdict"] == "failed") == failed
    assert done.returncode == bool(failed)


RUN_PAGE = [sys.executable, str(ROOT / "docs" / "run_page.py")]


@pytest.mark.models
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(f"docs/tutorials/{who}.md" for who in ("ml-engineer", "driver-engineer", "researcher")),
        pytest.param("docs/how-to/drivers/capture-and-replay.md", marks=pytest.mark.nightly),
    ],
)
def test_the_commands_of_a_page_print_what_it_shows(page):
    done = subprocess.run([*RUN_PAGE, str(ROOT / page), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


PAGE = """\
```console
$ echo took 12 ms, score 0.5
took 99 us, score 0.501
$ echo 7 > drawn.png; ls nothing
ls: cannot access 'nothing': No such file or directory
[status 2]
```
![a picture](pictures/drawn.png)
"""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("score 0.501", "score 0.7", "score 0.7"),
        ("took 99 us", "lasted 99 us", "lasted"),
        ("[status 2]\n", "", "[status 2]"),
        ("drawn.png)", "other.png)", "no command draws it"),
    ],
)
def test_a_page_that_is_not_true_any_more_is_told_line_by_line(tmp_path, before, after, told):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert subprocess.run([*RUN_PAGE, str(page)], capture_output=True, check=False).returncode == 0
    assert (tmp_path / "pictures" / "drawn.png").read_text() == "7\n"
    page.write_text(PAGE)
    assert subprocess.run([*RUN_PAGE, str(page), "--check"], capture_output=True, check=False).returncode == 0
    page.write_text(PAGE.replace(before, after))
    done = subprocess.run([*RUN_PAGE, str(page), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and told in done.stdout


@pytest.mark.parametrize(("now", "alike"), [("8192 B", True), ("-16 KiB", True), ("12 KiB shared", False)])
def test_only_the_measured_size_of_a_page_may_change_its_unit(now, alike):
    same = runpy.run_path(RUN_PAGE[1])["alike"]
    assert same("Memory: 12 KiB private", f"Memory: {now} private", measured=True) is alike
    assert not same("Memory: 12 KiB private", f"Memory: {now} private")


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_the_packing_driver_packs_tells_and_changes_its_gain(isolation):
    device = nnhal.load_driver(EXAMPLES / "my_packing_driver.py")
    b, generator = nnhal.Builder(), np.random.default_rng(0)
    x = y = b.input((2, 32))
    for units in (64, 16):
        weights = generator.normal(size=(units, y.shape[-1])).astype(np.float32)
        y = b.fully_connected(y, weights, np.ones(units, np.float32), activation="relu")
    model, given = b.finish([x], [y]), generator.normal(size=(2, 32)).astype(np.float32)
    expected = nnhal.compile(model, devices="reference")(given)
    compiled = nnhal.compile(model, devices=device.name, isolation=isolation, driver_options={"packing": {"gain": 2}})
    assert np.allclose(compiled(given), 2 * expected, atol=1e-4)
    compiled.configure("packing", {"gain": 0.5})
    assert np.allclose(compiled(given), expected / 2, atol=1e-4)
    assert compiled.memory.total.weights_copied == 4 * (32 * 64 + 64 + 64 * 16 + 16)
    with pytest.raises(nnhal.InvalidArgument, match="option gain is 'much', must be a number"):
        compiled.configure("packing", {"gain": "much"})
    assert np.allclose(compiled(given), expected / 2, atol=1e-4)


@pytest.mark.cache
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_what_the_packing_driver_packed_the_next_process_packs_no_more(isolation, tmp_path):
    program = (
        "import sys, nnhal, numpy as np\n"
        f"d = nnhal.load_driver({str(EXAMPLES / 'my_packing_driver.py')!r})\n"
        "b = nnhal.Builder(); x = b.input((1, 64)); w = np.eye(48, 64, dtype=np.float32) * 3\n"
        "y = b.fully_connected(x, w, np.zeros(48, np.float32))\n"
        f"c = nnhal.compile(b.finish([x], [y]), devices=d.name, isolation={isolation!r})\n"
        "print(c(np.ones((1, 64), np.float32)).tolist() == [[3.0] * 48])"
    )
    sizes = []
    for _ in range(2):
        done = run_python(program, env={'NNHAL_STATE_DIR': str(tmp_path / 'state')})  # fmt: skip
        assert done.stdout == "True\n"
        (file,) = (tmp_path / "state").glob("*.blobs")
        sizes.append(file.stat().st_size)
    assert sizes[0] == sizes[1] > 4 * 48 * 64


FILES = """\
<!-- file: package/one.txt -->
```text
first
second
third
```
<!-- change: package/one.txt -->
```diff
-first
+1
 second
@@
+more
 third
```
<!-- part: package/one.txt -->
```text
second
more
```
```console
$ cat package/one.txt
1
second
more
third
```
"""


def test_the_files_that_a_page_shows_are_those_that_its_commands_see(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(FILES)
    done = subprocess.run([*RUN_PAGE, str(page), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("before", "after"), [("-first", "-fist"), (" third", " other"), ("more\n```\n```c", "less\n```\n```c")]
)
def test_a_page_that_changes_or_shows_what_no_file_has_is_told(tmp_path, before, after):
    page = tmp_path / "page.md"
    page.write_text(FILES.replace(before, after))
    done = subprocess.run([*RUN_PAGE, str(page), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "one.txt has these lines 0 times, must have them once" in done.stderr
