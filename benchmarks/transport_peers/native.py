"""The floors in C, compiled when they start: client and server are one program that forks."""

import shutil
import subprocess
import tempfile
from array import array
from pathlib import Path

from transport_peers.peer import FOLDER, SPIN_NS, Peer, Placement, Unavailable, cpu_list

FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")


class Native(Peer):
    """A C program that measures itself. source: `seqpacket` or `ring`."""

    def __init__(self, source: str, waiting: str) -> None:
        self.name, self.waiting, self._source = f"{source} in C", waiting, source
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def require(self) -> None:
        if shutil.which("gcc") is None:
            raise Unavailable("not installed: a C compiler, such as apt install gcc")

    def start(self, placement: Placement) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="transport")
        program = Path(self._folder.name) / self._source
        subprocess.run(["gcc", *FLAGS, "-o", program, FOLDER / f"{self._source}.c"], check=True)
        spin = str(SPIN_NS if self.waiting == "spin" else 0)
        command = [str(program), spin, cpu_list(placement.server), cpu_list(placement.client)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, count: int) -> list[int]:
        assert self._process and self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{count}\n".encode())
        self._process.stdin.flush()
        spent = array("Q", self._process.stdout.read(8 * count))
        if len(spent) != count:
            raise RuntimeError(f"{self.label}: {len(spent)} durations, must be {count}")
        return spent.tolist()

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()


def peers() -> list[Peer]:
    """Every program in both waiting modes."""
    return [Native(source, waiting) for source in ("seqpacket", "ring") for waiting in ("block", "spin")]
