"""The sandbox survives, and correctly names, every death a child can die."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fuzz.sandbox import Death, Sandbox, SandboxError

HANDLER = __name__.replace("test_sandbox", "sandbox_handlers") + ":handle"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and PDEATHSIG")


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with Sandbox(HANDLER, seconds=20, megabytes=400) as opened:
        yield opened


def died(answer: bytes | Death) -> Death:
    assert isinstance(answer, Death), answer
    return answer


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether no process `pid` runs; one that nobody has reaped yet does not run."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def test_child_persists(sandbox: Sandbox) -> None:
    assert sandbox.pid is None
    assert sandbox.ask(b"echo hello") == b"hello"
    assert sandbox.ask(b"echo ") == b""
    assert sandbox.ask(b"count") == b"1"
    pid = sandbox.pid
    assert [sandbox.ask(b"count") for _ in range(2)] == [b"2", b"3"]
    assert (sandbox.pid, sandbox.starts) == (pid, 1)


@pytest.mark.parametrize(
    ("request_", "cause", "detail", "printed"),
    [
        (b"segfault", "signal", "SIGSEGV", "about to read address 0"),
        (b"abort", "signal", "SIGABRT", ""),
        (b"exit 3", "exit", "exit status 3", ""),
        (b"raise so be it", "exit", "exit status 1", "ValueError: so be it"),
    ],
)
def test_deaths(sandbox: Sandbox, request_: bytes, cause: str, detail: str, printed: str) -> None:
    sandbox.ask(b"count")
    death = died(sandbox.ask(request_))
    assert (death.cause, death.detail) == (cause, detail)
    assert death.stage == request_.split()[0].decode()
    assert death.stderr.endswith(printed)
    assert sandbox.pid is None
    assert sandbox.ask(b"count") == b"1"
    assert sandbox.starts == 2


@pytest.mark.parametrize("verb", ["hang", "hang_deaf"])
def test_timeout(verb: str) -> None:
    with Sandbox(HANDLER, seconds=1, megabytes=400) as sandbox:
        sandbox.ask(b"echo")
        started = time.monotonic()
        assert sandbox.ask(verb.encode()) == Death("timeout", "1 s", verb, "")
        assert 1 <= time.monotonic() - started < 5
        assert sandbox.ask(b"count") == b"1"


def test_timeout_of_a_child_that_does_not_read() -> None:
    with Sandbox(HANDLER, seconds=1, megabytes=400) as sandbox:
        sandbox.ask(b"echo")
        assert sandbox.pid is not None
        os.kill(sandbox.pid, signal.SIGSTOP)
        assert sandbox.ask(bytes(5_000_000)) == Death("timeout", "1 s", stage="", stderr="")


@on_linux
def test_memory_limit(sandbox: Sandbox) -> None:
    death = died(sandbox.ask(b"swell"))
    assert (death.cause, death.stage) == ("memory", "swell")
    assert int(death.detail.removesuffix(" MB")) > 400


@on_linux
def test_swollen_child_is_retired(sandbox: Sandbox) -> None:
    assert sandbox.ask(b"keep 100") == b"kept"
    assert sandbox.pid is not None
    assert sandbox.ask(b"keep 250") == b"kept"
    assert sandbox.pid is None


def test_killed_from_outside(sandbox: Sandbox, tmp_path: pathlib.Path) -> None:
    sandbox.ask(b"echo")
    pid, marker = sandbox.pid, tmp_path / "hanging"
    assert pid is not None

    def kill() -> None:
        wait_until(marker.exists)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    death = died(sandbox.ask(b"hang " + os.fsencode(marker)))
    killer.join()
    assert death == Death("signal", "SIGKILL", "hang", "")
    assert sandbox.ask(b"echo again") == b"again"


@on_linux
def test_killed_while_idle(sandbox: Sandbox) -> None:
    """Nobody's request is to blame, so the next one simply gets a fresh child."""
    sandbox.ask(b"echo")
    pid = sandbox.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))
    assert sandbox.ask(b"echo again") == b"again"
    assert sandbox.starts == 2


@on_linux
def test_grandchild_neither_hides_a_death_nor_survives_it(sandbox: Sandbox) -> None:
    death = died(sandbox.ask(b"spawn"))
    assert death.detail == "SIGABRT"
    wait_until(lambda: is_gone(int(death.stderr)))


def test_prints_do_not_disturb(sandbox: Sandbox) -> None:
    assert sandbox.ask(b"chatter 1000000") == b"quiet again"
    assert sandbox.ask(b"echo clear") == b"clear"
    assert died(sandbox.ask(b"segfault")).stderr == "about to read address 0"


def test_long_log_is_cut(sandbox: Sandbox) -> None:
    death = died(sandbox.ask(b"raise " + b"line\n" * 100 + b"x" * 3000))
    assert death.stderr.endswith("x" * 3000)
    assert death.stderr.count("line") <= 40
    assert len(death.stderr) <= 4096


def test_large_messages(sandbox: Sandbox) -> None:
    payload = os.urandom(5_000_000)
    assert sandbox.ask(b"echo " + payload) == payload


@pytest.mark.parametrize("handler", ["no_such_module:handle", "signal:no_such_function"])
def test_handler_that_does_not_import(handler: str) -> None:
    with Sandbox(handler, seconds=20, megabytes=400) as sandbox:
        with pytest.raises(SandboxError, match="could not start") as raised:
            sandbox.ask(b"echo")
        assert sandbox.pid is None
    sentence, _, tail = str(raised.value).partition("\n")
    assert sentence == f"The sandbox could not start '{handler}' (exit: exit status 1)."
    assert "Error: " in tail


def test_slow_start(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not charged to the first request, and has a limit of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    source = "import time; time.sleep(2)\ndef handle(request, stage): return request"
    (tmp_path / "slow_handler.py").write_text(source)
    with Sandbox("slow_handler:handle", seconds=1, megabytes=400) as sandbox:
        assert sandbox.ask(b"late") == b"late"
    monkeypatch.setattr("fuzz.sandbox.STARTUP_SECONDS", 0.5)
    with pytest.raises(SandboxError, match=r"timeout: 0\.5 s"):
        sandbox.ask(b"later")


def test_interrupted_request_leaves_no_stale_answer(sandbox: Sandbox, request: pytest.FixtureRequest) -> None:
    # A test run that was started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    sandbox.ask(b"echo")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        sandbox.ask(b"hang")
    assert sandbox.pid is None
    assert sandbox.ask(b"echo fresh") == b"fresh"


@on_linux
@pytest.mark.parametrize("end", ["close", "forget"])
def test_no_process_is_left(end: str) -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    sandbox = Sandbox(HANDLER, seconds=20, megabytes=400)
    sandbox.ask(b"echo")
    pid = sandbox.pid
    assert pid is not None
    if end == "close":
        sandbox.close()
        assert sandbox.pid is None
    del sandbox
    assert is_gone(pid)
    assert descriptors.issuperset(os.listdir("/proc/self/fd"))


PARENT = f"""
import sys
from fuzz.sandbox import Sandbox
sandbox = Sandbox({HANDLER!r}, seconds=60, megabytes=400)
sandbox.ask(b"echo")
print(sandbox.pid, flush=True)
sandbox.ask(sys.argv[1].encode())
"""


def start_parent(request: str) -> tuple[subprocess.Popen[str], int]:
    """Start a Python process with a sandbox of its own; return it and its child's pid."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, request], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@on_linux
def test_busy_child_dies_with_its_killed_parent(tmp_path: pathlib.Path) -> None:
    marker = tmp_path / "hanging"
    parent, child = start_parent(f"hang {marker}")
    with parent:
        wait_until(marker.exists)
        assert not is_gone(child)
        parent.kill()
    wait_until(lambda: is_gone(child))


@on_linux
def test_no_child_outlives_a_normal_exit() -> None:
    parent, child = start_parent("echo")
    with parent:
        assert parent.wait(timeout=20) == 0
    assert is_gone(child)
