"""What `import nnhal` costs on top of numpy, in paired fresh processes. The last line is JSON.

python benchmarks/import_time.py [--pairs N]
"""

import argparse
import json
import subprocess
import sys

import numpy as np

TIMED = """from time import perf_counter as now; t = now(); import numpy; n = now(); {}; print(n - t, now() - n)"""
FORBIDDEN = ("ai_edge_litert", "click", "rich", "tflite", "flatbuffers", "PIL", "msgspec")


STATEMENTS = {
    "import_over_numpy": "import nnhal",
    "import_and_resolve_api_over_numpy": "import nnhal; nnhal.load, nnhal.compile, nnhal.Builder",  # they load lazily
}


def measure(statement: str, pairs: int) -> float:
    """Median over fresh processes of the statement's time over numpy's import in the same process."""
    program = [sys.executable, "-c", TIMED.format(statement)]
    runs = [list(map(float, subprocess.check_output(program, text=True).split())) for _ in range(pairs)]
    return round(float(np.median([own / numpy for numpy, own in runs])), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30)
    pairs = parser.parse_args().pairs
    found = {key: measure(statement, pairs) for key, statement in STATEMENTS.items()}
    loaded = f"import nnhal, sys; nnhal.compile; print([m for m in {FORBIDDEN!r} if m in sys.modules])"
    there = subprocess.check_output([sys.executable, "-c", loaded], text=True).strip()
    print(json.dumps({**found, "pairs": pairs, "engines_and_cli_loaded": there}))


if __name__ == "__main__":
    main()
