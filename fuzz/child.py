"""The sandbox's end inside the child process: import a handler once, then answer requests.

Run by `fuzz.sandbox` as `python -m fuzz.child MODULE:FUNCTION REQUEST_FD REPLY_FD`. Both pipes
carry frames: one byte of kind, eight bytes of little-endian length, then the payload.
"""

import ctypes
import enum
import importlib
import io
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable

HEADER = struct.Struct("<BQ")
PR_SET_PDEATHSIG = 1

Handler = Callable[[bytes, Callable[[str], None]], bytes]


class Kind(enum.IntEnum):
    """What a frame carries: REQUEST goes to the child, the others come from it."""

    REQUEST = 0
    READY = 1
    STAGE = 2
    RESULT = 3


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """Return the bytes of one frame, ready to be written to a pipe."""
    return HEADER.pack(kind, len(payload)) + payload


def main(handler: str, request_fd: int, reply_fd: int) -> None:
    """Answer requests until the parent closes its end of the request pipe.

    Raises whatever the import of the handler's module raises.
    """
    _die_with_parent()
    # Prints go to a file, so Python would keep them in a buffer that a crash throws away.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)

    with open(request_fd, "rb") as requests, open(reply_fd, "wb", buffering=0) as replies:
        handle = _resolve(handler)
        _write(replies, frame(Kind.READY))
        while header := requests.read(HEADER.size):
            _, length = HEADER.unpack(header)
            _write(replies, frame(Kind.RESULT, _answer(handle, requests.read(length), replies)))


def _answer(handle: Handler, request: bytes, replies: io.FileIO) -> bytes:
    def stage(name: str) -> None:
        _write(replies, frame(Kind.STAGE, name.encode()))

    try:
        return handle(request, stage)
    except Exception:
        traceback.print_exc()
        sys.stdout.flush()
        # Not an ordinary exit: tearing native libraries down could hang, or crash and hide this.
        os._exit(1)


def _write(pipe: io.FileIO, message: bytes) -> None:
    unsent = memoryview(message)
    while unsent:
        unsent = unsent[pipe.write(unsent) :]


def _resolve(handler: str) -> Handler:
    module, _, function = handler.partition(":")
    resolved: Handler = getattr(importlib.import_module(module), function)
    return resolved


def _die_with_parent() -> None:
    # The end of the request pipe tells an idle child; only the kernel can tell a busy one.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
