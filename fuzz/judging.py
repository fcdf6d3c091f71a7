"""Judging in the sandbox, seen from the parent, which needs no torch.

``Judge`` asks, turns the death of a child into a finding, attributes it by asking for stock lowering, and
remembers verdicts so that no program is judged twice by the same oracles.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fuzz.messages import ALL, Check, CheckRequest, Refusal, Request
from fuzz.sandbox import Death, Sandbox
from generators.program import Program
from oracles.catalogue import ORACLES
from oracles.verdict import Attribution, Finding, Verdict

SECONDS = 60.0
"""Per program. One lowering takes about a second; a program needs a handful."""
CANDIDATE_SECONDS = 20.0
"""Per program that the reducer tries: smaller, lowered once, and one after the other may hang."""
MEGABYTES = 6000
"""Resident memory of the child. The libraries alone take about 700 MB."""
HANDLER = "fuzz.child_judge:handle"


T = TypeVar("T")
Key = tuple[str, str, tuple[str, ...], bool]


def _key(request: Request) -> Key:
    return (request.program.digest, request.subject, request.oracles, request.attribute)


class RefusedError(ValueError):
    """What the user gave cannot be judged: one sentence."""


def _accepted(answer: T | Refusal) -> T:
    if isinstance(answer, Refusal):
        raise RefusedError(answer.reason)
    return answer


def _verdict_of(answer: bytes) -> Verdict:
    return _accepted(msgspec.json.decode(answer, type=Verdict | Refusal))


def _before_subject(death: Death) -> bool:
    """Whether the child died where the subject was not yet, or not at all, at work."""
    return "(stock)" in death.stage or death.stage.startswith("eager")


def _died(death: Death, attribution: Attribution) -> Finding:
    """The death of a child as a finding of ``lowers``."""
    stage = death.stage.split(" (")[0]
    last = death.stderr.strip().splitlines()[-1:] or [""]
    return Finding(
        oracle="lowers",
        attribution=attribution,
        rule=ORACLES["lowers"].rule,
        expected="the program folds, lowers, loads and runs",
        got=f"the process died in stage {stage}: {death.cause}, {death.detail}. {last[0][:200]}",
        stage=stage,
        exception=death.detail if death.cause in ("signal", "exit") else death.cause,
        trace=death.stderr,
    )


class Judge:
    """Judges programs under one subject in a sandbox of its own. A context manager; else ``close`` it."""

    def __init__(self, subject: str, *, seconds: float = SECONDS, megabytes: int = MEGABYTES) -> None:
        self.subject = subject
        self._seconds = seconds
        self._sandbox = Sandbox(HANDLER, seconds=seconds, megabytes=megabytes)
        self._known: dict[Key, Verdict] = {}

    def __call__(self, program: Program, oracles: tuple[str, ...] = ALL) -> Verdict:
        """The verdict on a valid program.

        Raises:
            SandboxError: no child can be started.
            RefusedError: the subject is none.
        """
        return self._verdict(Request(program, self.subject, oracles))

    def shows(self, program: Program, finding: Finding) -> bool:
        """Whether the program breaks in the way of ``finding``, whoever is to blame. Raises like a call."""
        request = Request(program, self.subject, (finding.oracle,), attribute=False)
        verdict = self._verdict(request, CANDIDATE_SECONDS)
        return any(item.cause == finding.cause for item in verdict.findings)

    def known(self, program: Program) -> bool:
        """Whether the program has been judged by all oracles before."""
        return _key(Request(program, self.subject)) in self._known

    def _verdict(self, request: Request, seconds: float = math.inf) -> Verdict:
        key = _key(request)
        if key not in self._known:
            self._known[key] = self._ask(request, seconds)
        return self._known[key]

    def _ask(self, request: Request, seconds: float) -> Verdict:
        asked = msgspec.json.encode(request)
        answer = self._sandbox.ask(asked, seconds)
        if isinstance(answer, bytes):
            return _verdict_of(answer)
        found = self._death(request, answer)
        # Nothing but the program itself makes a hang of a minute.
        if found.attribution != "fault" or not request.attribute or answer.cause == "timeout":
            return Verdict("findings", (found,))
        # A child may also be killed from outside, by the system or a user: only what dies again is to blame.
        again = self._sandbox.ask(asked)
        if isinstance(again, Death):
            return Verdict("findings", (found,))
        verdict = _verdict_of(again)
        flaky = _died(answer, "flaky")
        return msgspec.structs.replace(verdict, outcome="findings", findings=(*verdict.findings, flaky))

    def _death(self, request: Request, death: Death) -> Finding:
        """The finding that a death comes to: upstream where stock dies or fails as well.

        A program that takes stock half of the time limit is a slow one, and its hang is nobody's fault.
        """
        upstream = request.subject == "stock" or _before_subject(death)
        if not upstream and request.attribute:
            seconds = self._seconds / 2 if death.cause == "timeout" else math.inf
            stock = self._verdict(Request(request.program, "stock", ("lowers",)), seconds)
            upstream = any(finding.oracle == "lowers" for finding in stock.findings)
        return _died(death, "upstream" if upstream else "fault")

    def close(self) -> None:
        """Ends the child."""
        self._sandbox.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


CHECK_SECONDS = 3600.0
"""For a whole user's model, which stock lowering may run slowly."""
CHECK_MEGABYTES = 1_000_000
"""No limit of ours: the model is as large as it is."""


def check_file(path: Path, subject: str) -> Check | Finding:
    """Checks a saved program in a child process, so that a crash of native code is an answer: a finding.

    Raises:
        RefusedError: the file cannot be checked, or the subject is none.
        SandboxError: no child can be started.
    """
    with Sandbox(HANDLER, seconds=CHECK_SECONDS, megabytes=CHECK_MEGABYTES) as sandbox:
        answer = sandbox.ask(msgspec.json.encode(CheckRequest(str(path), subject)))
        if isinstance(answer, bytes):
            return _accepted(msgspec.json.decode(answer, type=Check | Refusal))
        if answer.stage == "load":
            raise RefusedError(f"{path}: expected a program that can be loaded, got {answer.detail} instead")
        stock = _before_subject(answer) or isinstance(
            sandbox.ask(msgspec.json.encode(CheckRequest(str(path), "stock"))), Death
        )
    return _died(answer, "upstream" if stock else "fault")
