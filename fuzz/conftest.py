"""Options of the fuzz targets, and the glue between pytest and the campaign."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest

from fuzz import quiet  # noqa: F401 - before the libraries are imported
from fuzz.campaign import Budget, fuzz
from fuzz.findings import Findings
from fuzz.judging import Judge
from fuzz.presentation import describe, summarize
from fuzz.sandbox import SandboxError
from fuzz.subjects import BUILT_IN, DEFAULT, check_name

DEFAULT_TIME = "4m"
RUN = pytest.StashKey[dict]()


def seconds(text: str) -> float:
    """``90``, ``90s``, ``5m`` or ``1h`` in seconds."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)", text, re.ASCII)
    if not found or not float(found[1]):
        raise ValueError(f"--fuzz-time: expected a time such as 90s, 5m or 1h, got {text[:40]!r}")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _count(text: str, option: str, low: int) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or int(text) < low:
        raise ValueError(f"{option}: expected a whole number of {low} to 10**18, got {text[:40]!r}")
    return int(text)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("foldfuzz")
    subjects = ", ".join(f"{name} ({about})" for name, (_, about) in BUILT_IN.items())
    group.addoption(
        "--subject",
        default=DEFAULT,
        help=f"The fold under test: {subjects}, or package.module:attribute. Default: {DEFAULT}.",
    )
    group.addoption(
        "--fuzz-time",
        default=None,
        help="Time budget of the whole run, such as 90s, 5m or 1h; to start takes about 20s of it. Default: "
        f"{DEFAULT_TIME}, or none where --fuzz-programs is given.",
    )
    group.addoption("--fuzz-programs", default=None, help="How many programs to judge. Default: no limit.")
    group.addoption(
        "--fuzz-seed",
        default=None,
        help="Same seed, same programs. Default: a new one, which is printed.",
    )
    group.addoption(
        "--findings",
        default=None,
        help="Folder for what is found. Default: a new one in ./findings.",
    )


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.stash[RUN] = worker["foldfuzz"]
        return
    try:
        config.stash[RUN] = _options(config)
    except (ValueError, SandboxError) as error:
        pytest.exit(str(error), returncode=2)


def _options(config: pytest.Config) -> dict:
    """The run's options, checked, as plain data that workers can be handed."""
    subject = config.getoption("--subject")
    time_text, programs = config.getoption("--fuzz-time"), config.getoption("--fuzz-programs")
    if time_text is None and programs is None:
        time_text = DEFAULT_TIME
    seed = config.getoption("--fuzz-seed")
    now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name = re.sub(r"\W+", "-", subject)
    folder = Path(config.getoption("--findings") or f"findings/{now}-{name}").absolute()
    options = {
        "subject": subject,
        "seconds": None if time_text is None else seconds(time_text),
        "programs": None if programs is None else _count(programs, "--fuzz-programs", 1),
        "seed": random.getrandbits(32) if seed is None else _count(seed, "--fuzz-seed", 0),
        "folder": str(folder),
        "run": f"{now}-{os.getpid()}",
        "started": time.time(),
    }
    check_name(subject)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--findings: expected a folder to write to, got {folder}: {error.strerror}"
        ) from None
    return options


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    node.workerinput["foldfuzz"] = node.config.stash[RUN]


def pytest_report_header(config: pytest.Config) -> str:
    run = config.stash[RUN]
    return f"foldfuzz: subject {run['subject']}, seed {run['seed']}, findings in {run['folder']}"


@pytest.fixture(scope="session")
def judge(request):
    """This worker's judge, with its child process."""
    with Judge(request.config.stash[RUN]["subject"]) as made:
        yield made


@pytest.fixture
def fuzz_with(request, judge):
    """Fuzzes with a strategy for this target's share of the budget, and fails on what was found."""
    run = request.config.stash[RUN]
    findings = Findings(Path(run["folder"]), run["run"])

    def fuzz_with(strategy, piece: int) -> None:
        name = request.node.originalname.removeprefix("test_")
        share = _share(run, len(request.session.items))
        run["begun"] = run.get("begun", 0) + 1
        result = fuzz(strategy, judge, findings, share, run["seed"], f"{name} {piece}")
        if not result.tally.judged:
            pytest.skip("no program was judged: the budget was spent before")
        if result.found or result.repeated:
            verbose = request.config.getoption("verbose") > 0
            pytest.fail(describe(result, run["subject"], verbose), pytrace=False)

    return fuzz_with


def _share(run: dict, targets: int) -> Budget:
    """One target's part of the budget: of what is left, as much as each of this worker's later targets."""
    programs = None if run["programs"] is None else -(-run["programs"] // targets)
    if run["seconds"] is None:
        return Budget(programs=programs)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    left = run["started"] + run["seconds"] - time.time()
    later = -(-targets // workers) - run.get("begun", 0)
    return Budget(time.monotonic() + left / max(1, later), programs)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that judged nothing shows nothing, and must not look like one that found nothing."""
    run = session.config.stash[RUN]
    asked = not session.config.getoption("collectonly") and session.testscollected
    if exitstatus == 0 and asked and not Findings(Path(run["folder"]), run["run"]).total().judged:
        session.exitstatus = 2


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    run = config.stash[RUN]
    terminalreporter.section("foldfuzz")
    folder = Path(run["folder"])
    total = Findings(folder, run["run"]).total()
    terminalreporter.write_line(summarize(total, run["subject"], run["seed"], folder))
