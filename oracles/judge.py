"""``judge``: asks the oracles, cheapest first, and attributes what they report before it accuses.

- *upstream*: stock lowering of the same program breaks the same rule, so the fold is not to blame;
- *gap*: a weight that must fold was left; the model is as slow as before, and nothing is broken;
- *fault*: everything else: the subject broke it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from generators.program import Program
from oracles.evidence import Evidence
from oracles.lowers import Lowers
from oracles.mutation import Mutation
from oracles.numerics import Numerics
from oracles.oracle import Oracle, Violation
from oracles.original import Original, ProgramOriginal
from oracles.partitions import Partitions
from oracles.quantization import Quantization
from oracles.stages import StageFailure
from oracles.subject import Subject

Attribution = Literal["fault", "gap", "upstream"]

ORACLES: dict[str, Oracle] = {
    oracle.name: oracle for oracle in (Quantization(), Lowers(), Mutation(), Numerics(), Partitions())
}
"""In the order in which they are asked: the one that decides at the earliest stage first."""


class Finding(msgspec.Struct, frozen=True):
    """What one oracle reports of one program under one subject."""

    oracle: str
    attribution: Attribution
    rule: str
    expected: str
    got: str
    goal: str = "None"
    stage: str = ""
    exception: str = ""
    frame: str = ""
    trace: str = ""

    @property
    def fingerprint(self) -> str:
        """Names this kind of finding, whatever the program: oracle, attribution, exception and frame."""
        parts = (self.oracle, self.attribution, self.stage, self.exception, self.frame)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on one program: ``invalid`` where it does not even run in eager or export.

    ``lowerings`` counts what the verdict cost. ``reason`` says why a program is invalid.
    """

    outcome: Literal["passes", "invalid", "findings"]
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    lowerings: int = 0

    def of(self, *attributions: Attribution) -> list[Finding]:
        """The findings with one of these attributions."""
        return [finding for finding in self.findings if finding.attribution in attributions]


def judge(original: Original, subject: Subject, oracles: Iterable[str] = tuple(ORACLES)) -> Verdict:
    """The verdict of the named oracles on one program under one subject.

    Raises:
        KeyError: an oracle that does not exist.
    """
    try:
        _ = original.eager
        _ = original.reference
        _ = original.exported()
    except StageFailure as failure:
        first = next(iter(failure.message.strip().splitlines()), "")
        reason = f"{failure.stage}: {failure.exception}: {first}"
        return Verdict("invalid", reason=reason[:300])
    return judge_evidence(Evidence(original, subject), oracles)


def judge_evidence(evidence: Evidence, oracles: Iterable[str] = tuple(ORACLES)) -> Verdict:
    """The verdict of the named oracles on evidence whose original runs and exports."""
    findings = tuple(finding for name in oracles for finding in _findings(ORACLES[name], evidence))
    return Verdict("findings" if findings else "passes", findings, lowerings=evidence.lowerings)


def judge_program(
    program: Program,
    subject: Subject,
    oracles: Iterable[str] = tuple(ORACLES),
    report: Callable[[str], None] = lambda stage: None,
) -> Verdict:
    """The verdict on a valid ``Program``. ``report`` hears of each stage before it runs."""
    return judge(ProgramOriginal(program, report), subject, oracles)


def _findings(oracle: Oracle, evidence: Evidence) -> list[Finding]:
    violations = _violations(oracle, evidence)
    if not violations:
        return []
    # The same rule, broken without the fold: asked only now, because it costs a lowering.
    broken = any(v for v in _violations(oracle, evidence.stock) if not v.gap)
    is_stock = evidence.stock is evidence
    found = []
    for violation in violations:
        attribution: Attribution = "upstream" if broken or is_stock else "fault"
        if violation.gap:
            attribution = "gap"
        found.append(
            Finding(
                oracle.name,
                attribution,
                oracle.rule,
                violation.expected,
                violation.got,
                violation.goal,
                violation.stage,
                violation.exception,
                violation.frame,
                violation.trace,
            )
        )
    return found


def _violations(oracle: Oracle, evidence: Evidence) -> list[Violation]:
    try:
        return list(oracle.check(evidence))
    except StageFailure:
        return []
