"""What a confined process has of the terminal and of descriptors that were left open: nothing to read."""

import os
import pty
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.execution import run_python
from tests.ipc.support import LIMIT

CONFINED = (
    "import os, fcntl\nfrom nnhal.ipc.confinement.confine import Limits, confine\nreport = confine([], Limits())\n"
)


def started(body: str, **options: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", CONFINED + body]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


def test_keystrokes_of_the_terminal_cannot_be_read_but_it_can_be_written_to() -> None:
    ours, theirs = pty.openpty()
    body = """
def outcome(act):
    try:
        return act()
    except OSError as error:
        return error.strerror
reads = [outcome(lambda fd=fd: os.read(fd, 100)) for fd in (0, 2)]
anew = outcome(lambda: os.open('/proc/self/fd/2', os.O_RDONLY | os.O_NOCTTY))
print(*reads, anew, os.isatty(2), report['stdio'], sep='\\n', flush=True)
os.write(2, b'heard')
"""
    with started(body, stdin=theirs, stderr=theirs) as process:
        os.write(ours, b"the user's password\n")
        said = process.communicate(timeout=LIMIT)[0].decode().splitlines()
    os.close(theirs)
    assert said == [
        *("b''", "Bad file descriptor", "Permission denied", "True"),
        "applied: input is /dev/null, output and errors for writing only",
    ]
    assert select.select([ours], [], [], LIMIT)[0] and b"heard" in os.read(ours, 1000)
    os.close(ours)


def test_a_file_that_is_written_to_goes_on_at_its_end(tmp_path: Path) -> None:
    file = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    os.write(file, b"secret ")
    with started("os.write(2, b'more')\nprint(fcntl.fcntl(2, fcntl.F_GETFL) & os.O_ACCMODE)", stderr=file) as process:
        assert process.communicate(timeout=LIMIT)[0] == b"1\n"  # O_WRONLY
    os.close(file)
    assert (tmp_path / "log").read_text() == "secret more"


def test_a_journals_socket_stays_and_what_only_reads_goes(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    (tmp_path / "log").write_text("secret")
    look = "os.write(2, report['stdio'].encode()); print('nowhere')"
    with ours, theirs, (tmp_path / "log").open() as reading:
        command = [sys.executable, "-c", CONFINED + look]
        subprocess.run(command, stdin=reading, stdout=reading, stderr=theirs, timeout=LIMIT, check=True)
        assert ours.recv(100).startswith(b"applied")
    assert (tmp_path / "log").read_text() == "secret"


@pytest.mark.parametrize("closed", [[0], [1, 2], [0, 1, 2]])
def test_standard_descriptors_that_were_closed_are_no_place_for_sockets(closed: list[int]) -> None:
    body = (
        f"import os\n[os.close(x) for x in {closed}]\n"
        "from nnhal.ipc.confinement.stdio import open_standard_descriptors, redirect\nopen_standard_descriptors()\n"
        "import socket\nheld = socket.socket()\nfd = held.fileno()\nredirect()\nos._exit(fd < 3 or not os.fstat(fd))\n"
    )
    run_python(body, timeout=LIMIT)


def test_descriptors_that_somebody_left_open_are_closed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("text")
    body = (
        "import os, sys, socket\nfrom nnhal.ipc.confinement.stdio import close_inherited\n"
        "own, kept = open(os.__file__), socket.socket()\nkept.set_inheritable(True)\n"
        "close_inherited([kept.fileno()])\nown.read(1), kept.getsockname()\n"
        "print(os.path.exists(f'/proc/self/fd/{sys.argv[1]}'))"
    )
    with (tmp_path / "secret").open() as file:
        command = [sys.executable, "-c", body, str(file.fileno())]
        done = subprocess.run(command, pass_fds=[file.fileno()], capture_output=True, timeout=LIMIT, check=True)
    assert done.stdout == b"False\n"
