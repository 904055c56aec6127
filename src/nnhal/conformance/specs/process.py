"""Reads specifications in a sandboxed process: a hostile, endless or huge one costs an error, and nothing else.

The process imports its modules, drops all access to files, sockets and other processes, and then evaluates. A message is
one line of JSON in each direction; the blob of a document follows it.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

from nnhal.base.errors import InvalidArgument, ResourceExhausted
from nnhal.ipc.confinement.confine import Limits, confine

SECONDS = 60  # of processor time that one specification may take
MEMORY = 4 << 30  # bytes
_CHILD = (  # an interrupt, or the end of the process that asks, ends it without a word
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); signal.signal(signal.SIGPIPE, signal.SIG_DFL); "
    "from nnhal.conformance.specs.process import serve; serve(*map(int, sys.argv[1:]))"
)


class SpecReader:
    """Reads specifications one by one, in a process that is started when it is needed."""

    def __init__(self, seconds: int = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: BinaryIO
        self._answers: BinaryIO

    def kill(self) -> None:
        """End the process at once; another thread that reads gets InvalidArgument."""
        if process := self._process:
            process.kill()

    def close(self) -> None:
        """End the process, which reads nothing."""
        self._ended()

    def read(self, path: Path) -> tuple[dict[str, Any], bytes]:
        """The document of the specification at `path`, and its blob.

        Raises:
            InvalidArgument: The specification is invalid, or exceeds the limit of time or memory; with file and line.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{path}: {error}, must be a readable UTF-8 file") from None
        request = json.dumps([str(path), text, path.resolve().parent.name, path.name.removesuffix(".mod.py")])
        if self._process is None:
            self._start()
        try:
            self._requests.write(f"{request}\n".encode())
            answer = json.loads(self._answers.readline())
            if "error" in answer:
                raise InvalidArgument(answer["error"])
            return answer["document"], self._answers.read(answer["blob"])
        except (OSError, json.JSONDecodeError):
            raise InvalidArgument(f"{path}:1: {self._fate(self._ended())}") from None

    def _start(self) -> None:
        requests, asks = os.pipe()
        hears, answers = os.pipe()
        self._requests, self._answers = os.fdopen(asks, "wb", 0), os.fdopen(hears, "rb")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CHILD, str(requests), str(answers), str(self._seconds)],
                pass_fds=(requests, answers),
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # landlock covers one thread
            )
        except OSError as error:
            raise ResourceExhausted(f"a process to read in cannot be started: {error.strerror}") from None
        finally:
            os.close(requests)
            os.close(answers)
        if not self._answers.readline():
            raise ResourceExhausted(f"the process to read in did not start: it ended with {self._ended()}")

    def _fate(self, code: int) -> str:
        if code == -signal.SIGPROF:
            return f"evaluation has not ended after {self._seconds} s of processor time, must end"
        return f"evaluation ended its process with exit code {code}, must not end it"

    def _ended(self) -> int:
        """End the process; returns its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        self._requests.close()
        self._answers.close()
        return process.wait()


def serve(requests: int, answers: int, seconds: int) -> None:
    """Answer requests until there are no more. Runs in the process that `SpecReader` starts."""
    from nnhal.conformance.specs.source import read

    confine([], Limits(memory=MEMORY), allow=["prlimit64"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # nothing can be opened any more
    with os.fdopen(requests, "rb") as lines, os.fdopen(answers, "wb") as output:
        output.write(b"ready\n")
        output.flush()
        for line in lines:
            path, text, version, specification = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
            try:
                document, blob = read(path, text, version, specification)
                answer, content = {"document": document, "blob": len(blob)}, blob
            except InvalidArgument as error:
                answer, content = {"error": str(error)}, b""
            signal.setitimer(signal.ITIMER_PROF, 0)
            output.write(json.dumps(answer).encode() + b"\n" + content)
            output.flush()
