"""A persistent child process in which code that may crash, hang or swell answers requests.

The child imports its handler once and then answers one request after another; when a request
kills it, the parent learns how and where, and the next request gets a fresh child.
"""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from typing import IO, Literal, Self

import msgspec

from fuzz.child import HEADER, Kind, frame

STARTUP_SECONDS = 180.0
POLL_SECONDS = 0.2
READ_BYTES = 1 << 16
TAIL_BYTES = 4096
TAIL_LINES = 40
BYTES_PER_MEGABYTE = 1_000_000


class SandboxError(RuntimeError):
    """The child could not be started, so there is nobody to judge a request."""


class Death(msgspec.Struct, frozen=True):
    """How a child died while it worked on a request.

    `detail` is the signal's name, the exit status, the time limit in seconds or the resident
    memory in MB; `stage` is the last one the handler reported for this request, "" if none;
    `stderr` is the end of what the child printed (stdout included) during this request.
    """

    cause: Literal["signal", "exit", "timeout", "memory"]
    detail: str
    stage: str
    stderr: str


class Sandbox:
    """Answers requests in a child process that is restarted whenever a request kills it.

    `handler` is "module:function", imported in the child with the parent's import path; the
    function is called as `handle(request, stage)`, calls `stage(name)` to tell how far it has
    come, and returns the answer's bytes. An exception that escapes it ends the child.

    A request may take `seconds`, or the less that it is asked with, and the child may hold
    `megabytes` (10**6 bytes) of resident memory, looked up about five times a second; without
    /proc the memory is not limited. A child left with more than half of that after an answer is
    replaced, so that a slow leak is not blamed on the request that happens to be the last; choose
    a limit well above twice what the handler's imports take.

    Use a sandbox from the one thread that created it: Linux kills the child as soon as the
    thread that started it ends.
    """

    def __init__(self, handler: str, *, seconds: float, megabytes: int) -> None:
        self.starts = 0
        """How many children have been started so far."""
        self._handler = handler
        self._seconds = seconds
        self._megabytes = megabytes
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the current child, None while there is none."""
        return self._child.pid if self._child else None

    def ask(self, request: bytes, seconds: float = math.inf) -> bytes | Death:
        """Return the handler's answer to `request`, or the death it caused.

        Starts a child first when there is none. Raises SandboxError when it does not start.
        """
        try:
            child = self._living_child()
            message = frame(Kind.REQUEST, request)
            seconds = min(seconds, self._seconds)
            answer = child.exchange(message, seconds=seconds, megabytes=self._megabytes)
        except BaseException:
            # An interrupted child would still send its answer, and the next request would get it.
            self.close()
            raise
        if isinstance(answer, Death) or child.resident_megabytes() > self._megabytes / 2:
            self.close()
        return answer

    def close(self) -> None:
        """Kill the child, if there is one; a later `ask` would start another."""
        if self._child:
            self._child.destroy()
            self._child = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _living_child(self) -> "_Child":
        if self._child and self._child.is_alive():
            return self._child
        self.close()
        self.starts += 1
        self._child = _Child(self._handler)
        ready = self._child.exchange(b"", seconds=STARTUP_SECONDS, megabytes=self._megabytes)
        if isinstance(ready, Death):
            raise SandboxError(
                f"The sandbox could not start {self._handler!r} ({ready.cause}: {ready.detail})."
                f"\n{ready.stderr}"
            )
        return self._child


class _Child:
    """One child process, the two pipes to it and the file it prints to."""

    def __init__(self, handler: str) -> None:
        request_fd, self._requests = os.pipe()
        self._replies, reply_fd = os.pipe()
        # The child may fall behind in reading; waiting for it must not defeat the time limit.
        os.set_blocking(self._requests, False)
        # A file takes everything a chatty child prints, where a pipe would fill up and block it.
        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `destroy`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.child", handler, str(request_fd), str(reply_fd)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(request_fd, reply_fd),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        os.close(request_fd)
        os.close(reply_fd)
        # A finalizer also runs when the interpreter exits, so no child outlives it.
        self.destroy = weakref.finalize(
            self, _destroy, self._process, (self._requests, self._replies), self._log
        )
        self.pid = self._process.pid
        self._received = bytearray()
        self._stage = ""

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def resident_megabytes(self) -> float:
        """Resident memory in MB, 0 where /proc does not tell."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as statm:
                pages = int(statm.read().split()[1])
        except OSError:
            return 0.0
        return pages * os.sysconf("SC_PAGE_SIZE") / BYTES_PER_MEGABYTE

    def exchange(self, message: bytes, *, seconds: float, megabytes: int) -> bytes | Death:
        """Send `message` and return the payload of the first frame that is not a stage."""
        deadline = time.monotonic() + seconds
        unsent = memoryview(message)
        self._stage = ""
        self._clear_log()
        while True:
            # Asked before the pipe is, so that nothing the child still sent is overlooked.
            exited = not self.is_alive()
            patience = min(POLL_SECONDS, max(0.0, deadline - time.monotonic()))
            writers = [self._requests] if unsent else []
            readable, writable, _ = select.select([self._replies], writers, [], patience)
            if writable:
                unsent = self._send(unsent)
            if readable and (received := os.read(self._replies, READ_BYTES)):
                self._received += received
                if (answer := self._take_answer()) is not None:
                    return answer
            elif exited:
                return self._ended()
            elif readable:
                # The pipe closes a moment before the process is gone; do not spin meanwhile.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience)
            if time.monotonic() >= deadline:
                return self._death("timeout", f"{seconds:g} s")
            if (resident := self.resident_megabytes()) > megabytes:
                return self._death("memory", f"{resident:.0f} MB")

    def _send(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._requests, unsent) :]
        except BrokenPipeError:
            # The child has died; the reply pipe is about to say so.
            return memoryview(b"")

    def _take_answer(self) -> bytes | None:
        for kind, payload in self._frames():
            if kind != Kind.STAGE:
                return payload
            self._stage = payload.decode(errors="replace")
        return None

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        while len(self._received) >= HEADER.size:
            kind, length = HEADER.unpack_from(self._received)
            end = HEADER.size + length
            if len(self._received) < end:
                return
            payload = bytes(self._received[HEADER.size : end])
            del self._received[:end]
            yield kind, payload

    def _ended(self) -> Death:
        status = self._process.wait()
        if status >= 0:
            return self._death("exit", f"exit status {status}")
        try:
            return self._death("signal", signal.Signals(-status).name)
        except ValueError:  # real-time signals have numbers but no names
            return self._death("signal", f"signal {-status}")

    def _death(self, cause: Literal["signal", "exit", "timeout", "memory"], detail: str) -> Death:
        return Death(cause=cause, detail=detail, stage=self._stage, stderr=self._log_tail())

    def _clear_log(self) -> None:
        # The child shares this file's position, so it goes on writing at the beginning.
        self._log.truncate(0)
        self._log.seek(0)

    def _log_tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        return "\n".join(tail.decode(errors="replace").splitlines()[-TAIL_LINES:])


def _destroy(process: subprocess.Popen[bytes], pipes: tuple[int, int], log: IO[bytes]) -> None:
    # The whole group, because the handler may have started processes of its own; macOS answers
    # EPERM where Linux answers ESRCH when nobody is left in it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in pipes:
        os.close(pipe)
    log.close()
