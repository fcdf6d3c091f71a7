"""Toy handlers for the sandbox's tests: each verb is one way to answer, or to die."""

import ctypes
import os
import pathlib
import sys
import time
from collections.abc import Callable

answered = 0


def handle(request: bytes, stage: Callable[[str], None]) -> bytes:
    """Do what the request's first word says, with the rest of it as argument."""
    verb, _, argument = request.partition(b" ")
    stage("looking up")
    stage(verb.decode())
    return ACTIONS[verb.decode()](argument)


def _echo(argument: bytes) -> bytes:
    return argument


def _count(_: bytes) -> bytes:
    global answered
    answered += 1
    return str(answered).encode()


def _segfault(_: bytes) -> bytes:
    print("about to read address 0")
    return ctypes.string_at(0)


def _abort(_: bytes) -> bytes:
    os.abort()


def _exit(status: bytes) -> bytes:
    sys.exit(int(status))


def _raise(message: bytes) -> bytes:
    raise ValueError(message.decode())


def _hang(marker: bytes) -> bytes:
    """Create the file `marker`, if one is named, to tell that the hanging has begun."""
    if marker:
        pathlib.Path(os.fsdecode(marker)).touch()
    while True:
        pass


def _hang_deaf(_: bytes) -> bytes:
    """Close every pipe and stay alive: the parent sees the end of file, but no exit."""
    os.closerange(3, 256)
    return _hang(b"")


def _swell(_: bytes) -> bytes:
    hoard = []
    while True:
        hoard.append(b"x" * 10_000_000)
        time.sleep(0.01)


def _keep(megabytes: bytes) -> bytes:
    ACTIONS["kept"] = (b"x" * (int(megabytes) * 1_000_000)).__add__
    return b"kept"


def _chatter(length: bytes) -> bytes:
    print("x" * int(length))
    os.write(1, b"y" * int(length))
    return b"quiet again"


def _spawn(_: bytes) -> bytes:
    """Fork a process that holds the pipes open, print its pid, then crash."""
    if not (pid := os.fork()):
        time.sleep(60)
    print(pid)
    os.abort()


ACTIONS: dict[str, Callable[[bytes], bytes]] = {
    "echo": _echo,
    "count": _count,
    "segfault": _segfault,
    "abort": _abort,
    "exit": _exit,
    "raise": _raise,
    "hang": _hang,
    "hang_deaf": _hang_deaf,
    "swell": _swell,
    "keep": _keep,
    "chatter": _chatter,
    "spawn": _spawn,
}
