"""Runs the commands of a page and puts their real output under them; with --check says whether the page is still true.

    python docs/run_page.py docs/tutorials/ml-engineer.md [--check]

A page has blocks of ```console in which each line after "$ " is a command; all run one after the other, in one empty
folder, after what a comment `<!-- before: COMMAND -->` says. They know NNHAL_ROOT, this repository, and NNHAL_VECTORS; what
they compile is kept beside that folder, and goes with it. A comment before another block says what it is: `<!-- file: NAME
-->`, a file, written when its turn comes; `<!-- change: NAME -->`, what changes in such a file: lines with "-", "+" or " "
before them, @@ between places; `<!-- part: NAME -->`, lines that stand in a file just so. Pictures that the page shows and a
command drew are copied to where it has them; others have to be there.

Durations differ from run to run, other numbers from processor to processor. A check ignores durations, all numbers of
`nnhal bench` with their units of bytes, its line about the CPU, its verdict and its warnings; other numbers may differ by a
hundredth.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from difflib import unified_diff
from itertools import zip_longest
from pathlib import Path

LIMIT = 300  # seconds a command
ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^(?:<!-- (file|change|part): (\S+) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
DURATION = re.compile(r"(?<![\w.])[\d,]+(?:\.\d+)?(?:e[-+]?\d+)? ?(?:ns|[uµ]s|ms|s)(?!\w)")
SIZE = re.compile(rf"{NUMBER.pattern} (?:[KMGT]i)?B\b")
SECONDS = re.compile(r"^((?:all|contract|vectors) .* )[\d,.]+$")  # the last cell of a row of `nnhal test`
BARS = re.compile("[\u2581-\u2588]")
MACHINE = re.compile(r"^CPU: .*|(?<=pairs\)): (?:no measurable difference|nnhal is slower|nnhal is faster)$")
BUSY = re.compile(  # lines that a busy machine adds: warnings, and progress after 10 s
    r"warning: (load average|CPU frequency)|[a-z ]+ \S+: [\d,]+ of [\d,]+(, \d+ \w+)*, \d+ s(, about \d+ \w+ left)?$"
)
BEFORE = re.compile(r"<!-- before: (.*?) -->")
WITHIN = 0.01


def run(command: str, folder: Path) -> str:
    """What a command prints, on both streams; a line with its status where that is not 0."""
    bin_ = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "COLUMNS": "110",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "NNHAL_ROOT": str(ROOT),
        "NNHAL_CACHE_DIR": str(folder.parent / "compiled"),
        "NNHAL_STATE_DIR": str(folder.parent / "state"),
        "NNHAL_VECTORS": os.environ.get("NNHAL_VECTORS", str(ROOT.parent / "shared" / "conformance")),
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    lines = [
        line.rstrip() for line in done.stdout.replace(str(folder), ".").replace(str(Path.home()), "~").splitlines()
    ]
    lines = [line for line in lines if not BUSY.match(line)]
    lines += [f"[status {done.returncode}]"] * (done.returncode != 0)
    return "".join(f"{line}\n" for line in lines)


def written_again(page: str, folder: Path) -> str:
    """The page with what its commands print now."""

    def block(found: re.Match[str]) -> str:
        what, name, language, text = found.groups()
        if what is not None:
            put(what, folder / name, text)
        if language != "console":
            return found[0]
        out = ""
        for command in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
            print(f"$ {command}", file=sys.stderr)
            out += f"$ {command}\n{run(command, folder)}"
        return f"```console\n{out}```"

    return BLOCK.sub(block, page)


def put(what: str, file: Path, text: str) -> None:
    """Do what a block says of a file; ValueError where it is not about the file as it is."""
    if what == "file":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return
    for place in [text] if what == "part" else re.split(r"^@@.*\n", text, flags=re.MULTILINE):
        lines = place.splitlines(keepends=True)
        before = place if what == "part" else "".join(line[1:] for line in lines if line[0] in " -")
        after = place if what == "part" else "".join(line[1:] for line in lines if line[0] in " +")
        now = file.read_text()
        if now.count(before) != 1:
            raise ValueError(f"{file.name} has these lines {now.count(before)} times, must have them once:\n{before}")
        file.write_text(now.replace(before, after))


def alike(old: str, new: str, *, measured: bool = False) -> bool:
    """Whether two lines say the same but for durations and almost equal numbers. measured: for all numbers and sizes."""
    old, new = (SECONDS.sub(r"\g<1>0", MACHINE.sub("", line)) for line in (old, new))
    old, new = (" ".join(BARS.sub("", DURATION.sub("0 s", line)).split()) for line in (old, new))
    if measured:
        return NUMBER.sub("0", SIZE.sub("0 B", old)) == NUMBER.sub("0", SIZE.sub("0 B", new))
    if NUMBER.sub("0", old) != NUMBER.sub("0", new):
        return False
    pairs = zip(*(NUMBER.findall(line) for line in (old, new)), strict=True)
    values = ((float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)
    return all(abs(a - b) <= WITHIN * max(abs(a), abs(b), 1e-3) for a, b in values)


def differences(old: str, new: str) -> list[str]:
    """What changed, as a diff; nothing where each line is alike."""
    said: list[str] = []
    command, same = "", True
    for a, b in zip_longest(old.splitlines(), new.splitlines()):
        command = b if b is not None and b.startswith("$ ") else command
        there = a is not None and b is not None and alike(a, b, measured=command.startswith("$ nnhal bench"))
        same = same and there
        said += [b if there else a] if a is not None else []
    return [] if same else list(unified_diff(said, new.splitlines(), "the page", "the commands", lineterm=""))


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 where the page is not true any more"
    )
    arguments = parser.parse_args()
    page = arguments.page.read_text()
    with tempfile.TemporaryDirectory(prefix="nnhal-page-") as name:
        folder = Path(name, "page")
        folder.mkdir()
        for command in BEFORE.findall(page):
            run(command, folder)
        new = written_again(page, folder)
        missing, commands = [], " ".join(re.findall(r"^\$ (.*)$", page, re.MULTILINE))
        for place in PICTURE.findall(page):
            drawn, kept = folder / Path(place).name, arguments.page.parent / place
            if not drawn.exists() and drawn.name not in commands and kept.exists():
                continue  # of the page's own
            if not drawn.exists():
                missing.append(f"{place}: no command draws it")
            elif not arguments.check:
                kept.parent.mkdir(exist_ok=True)
                shutil.copyfile(drawn, kept)
            elif not kept.exists():
                missing.append(f"{place}: is not there")
    if not arguments.check:
        arguments.page.write_text(new)
    changed = [*missing, *(differences(page, new) if arguments.check else [])]
    print(*changed, sep="\n", end="\n" * bool(changed))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
