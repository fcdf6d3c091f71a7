"""The campaign: Hypothesis draws programs from a strategy, the judge judges them, findings are reduced.

Hypothesis generates only. A candidate costs a second here, so that shrinking the draws would take longer
than Hypothesis allows; the reducer works on the program instead (see ``fuzz.reducer``).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import hypothesis
from hypothesis.strategies import SearchStrategy

from fuzz.findings import Findings, Tally
from fuzz.independent import independent
from fuzz.judging import Judge
from fuzz.reducer import reduce
from generators.program import Program
from oracles.verdict import Finding

REDUCTIONS = {"fault": (25.0, 60.0), "gap": (20.0, 30.0), "upstream": (0.0, 10.0)}
"""Seconds to reduce a finding in: after the end of the time, and at most."""
ENDLESS = 1_000_000
DRAWS = 20
REPEATED = 300
"""So many programs drawn again in a row, and there are no new ones."""
T = TypeVar("T")


class _Spent(Exception):
    """The budget is spent."""


@dataclass(frozen=True)
class Budget:
    """When to stop: at ``deadline`` (``time.monotonic`` seconds) or after ``programs``; None is no limit."""

    deadline: float | None = None
    programs: int | None = None

    def spent(self, judged: int) -> bool:
        """Whether nothing more may be judged."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or (self.programs is not None and judged >= self.programs)

    def reduction(self, finding: Finding) -> float:
        """Seconds to reduce a finding in; what others get wrong is reduced only while there is time."""
        least, most = REDUCTIONS[finding.attribution]
        left = math.inf if self.deadline is None else self.deadline - time.monotonic()
        return max(least, min(left, most))


@dataclass(frozen=True)
class Found:
    """A finding that fails a target: what was found, the reduced program, and where the case is."""

    finding: Finding
    program: Program
    path: Path


@dataclass
class Result:
    """What one target found: the distinct findings that fail it, how many more were like them."""

    tally: Tally
    found: list[Found] = field(default_factory=list)
    repeated: int = 0


def fuzz(
    strategy: SearchStrategy[Program],
    judge: Judge,
    findings: Findings,
    budget: Budget,
    seed: int,
    name: str,
) -> Result:
    """Draws and judges programs until the budget is spent. Same seed and name, same programs.

    Raises:
        SandboxError: no child can be started to judge in.
    """
    result = Result(Tally())
    repeated = 0

    def each(program: Program) -> None:
        nonlocal repeated
        repeated = repeated + 1 if judge.known(program) else 0
        if budget.spent(result.tally.judged) or repeated > REPEATED:
            raise _Spent
        if not repeated:
            _judge_one(program, judge, findings, budget, result)

    try:
        _draw(strategy, each, seed, name)
    finally:
        findings.finished()
    return result


def drawn(strategy: SearchStrategy[T], count: int, seed: int, name: str) -> list[T]:
    """The first ``count`` distinct programs that ``fuzz`` would judge with this seed and name.

    Fewer where no more turn up in ``DRAWS`` times as many draws.
    """
    programs: dict[T, None] = {}
    draws = 0

    def each(program: T) -> None:
        nonlocal draws
        draws += 1
        # Of a few members there may be fewer programs than asked for.
        if len(programs) >= count or draws > DRAWS * count:
            raise _Spent
        programs[program] = None

    _draw(strategy, each, seed, name)
    return list(programs)


def _draw(strategy: SearchStrategy[T], each: Callable[[T], None], seed: int, name: str) -> None:
    number = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big")
    with independent(number) as backend:
        _run(strategy, each, backend)


def _run(strategy: SearchStrategy[T], each: Callable[[T], None], backend: str) -> None:
    stopped: list[BaseException] = []

    @hypothesis.settings(
        max_examples=ENDLESS,  # The budget ends the run.
        phases=[hypothesis.Phase.generate],
        backend=backend,
        database=None,  # Findings are kept as programs, which outlive a change of the strategies.
        deadline=None,  # The sandbox limits the time of a program.
        suppress_health_check=list(hypothesis.HealthCheck),  # Judging is slow, and meant to be.
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(strategy)
    def run(program: T) -> None:
        try:
            each(program)
        except BaseException as error:
            # Hypothesis would run a failing program again, find it judged, and call it flaky.
            stopped.append(error)
            raise _Spent from error
        finally:
            if stopped:
                raise _Spent

    with contextlib.suppress(_Spent):
        run()
    if stopped and not isinstance(stopped[0], _Spent):
        raise stopped[0]


def _judge_one(program: Program, judge: Judge, findings: Findings, budget: Budget, result: Result) -> None:
    findings.running(program, judge.subject)
    verdict = judge(program)
    result.tally.add(verdict)
    findings.tally(verdict)
    for finding in verdict.findings:
        if finding.attribution == "gap" and judge.subject == "stock":
            continue  # Gaps are what no fold at all is expected to show; they are counted.
        ours = finding.attribution in ("fault", "gap")
        if not findings.claim(finding):
            result.repeated += ours
            continue
        findings.raw(finding, program, judge.subject)
        if finding.attribution == "flaky":
            continue  # There is nothing that a smaller program would show.
        found = _reduce(finding, program, judge, budget.reduction(finding))
        path = findings.reduced(found[0], found[1], judge.subject)
        if not ours:
            continue
        if path is None:
            result.repeated += 1
        else:
            result.found.append(Found(*found, path))


def _reduce(finding: Finding, program: Program, judge: Judge, seconds: float) -> tuple[Finding, Program]:
    """The smallest program that shows the finding, and the finding as it shows there."""
    deadline = time.monotonic() + seconds

    def shows(candidate: Program) -> bool:
        return judge.shows(candidate, finding)

    def alike(candidate: Program) -> Finding | None:
        found = judge(candidate, (finding.oracle,)).findings
        return next((item for item in found if item.fingerprint == finding.fingerprint), None)

    reduced = reduce(program, shows, seconds)
    if reduced is program:
        return finding, program
    if found := alike(reduced):
        return found, reduced
    # Made smaller it has turned into somebody else's fault: again, and with blame asked at each step.
    left = deadline - time.monotonic()
    reduced = reduce(program, lambda candidate: shows(candidate) and alike(candidate) is not None, left)
    return (finding if reduced is program else alike(reduced) or finding), reduced
