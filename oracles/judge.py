"""``judge``: asks the oracles, cheapest first, and attributes what they report before it accuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from generators.program import Program
from oracles.catalogue import ORACLES
from oracles.evidence import Evidence
from oracles.oracle import Oracle, Violation
from oracles.original import Original, ProgramOriginal
from oracles.stages import StageFailure
from oracles.subject import Subject
from oracles.verdict import Attribution, Finding, Outcome, Verdict

BY_HAND = ("lowers", "mutation", "numerics")
"""Oracles of what ExecuTorch makes of a program: a weight that it cannot take is nobody else's fault."""


def judge(
    original: Original,
    subject: Subject,
    oracles: Iterable[str] = tuple(ORACLES),
    attribute: bool = True,
) -> Verdict:
    """The verdict of the named oracles on one program under one subject.

    Without ``attribute`` stock lowering is not asked, so that a fault may be upstream's: cheap enough to
    find out, candidate after candidate, whether a finding still shows.

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
    return judge_evidence(Evidence(original, subject, attribute=attribute), oracles)


def judge_evidence(evidence: Evidence, oracles: Iterable[str] = tuple(ORACLES)) -> Verdict:
    """The verdict of the named oracles on evidence whose original runs and exports."""
    findings: list[Finding] = []
    unjudged = {}
    for name in oracles:
        try:
            findings += _findings(ORACLES[name], evidence)
        except StageFailure as failure:
            unjudged[name] = f"{failure.exception} in stage {failure.stage}"
    outcome: Outcome = "findings" if findings else "passes"
    return Verdict(outcome, tuple(findings), lowerings=evidence.lowerings, unjudged=unjudged)


def judge_program(
    program: Program,
    subject: Subject,
    oracles: Iterable[str] = tuple(ORACLES),
    report: Callable[[str], None] = lambda stage: None,
    attribute: bool = True,
) -> Verdict:
    """The verdict on a valid ``Program``. ``report`` hears of each stage before it runs."""
    return judge(ProgramOriginal(program, report), subject, oracles, attribute)


def _findings(oracle: Oracle, evidence: Evidence) -> list[Finding]:
    violations = list(oracle.check(evidence))
    if not violations:
        return []
    # The same rule, broken without the fold: asked only now, because it costs a lowering.
    accused = any(not violation.gap for violation in violations)
    broken = accused and evidence.attribute and _upstream(oracle, violations, evidence)
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


def _upstream(oracle: Oracle, violations: list[Violation], evidence: Evidence) -> bool:
    """Whether the rule is broken without the fold: by stock, or in the same way after a fold by hand."""
    if _faults(oracle, evidence.stock):
        return True
    if oracle.name not in BY_HAND:
        return False
    wrong = {violation.cause for violation in violations if not violation.gap}
    try:
        by_hand = evidence.by_hand
    except StageFailure:
        return False
    return by_hand is not None and bool(wrong & {item.cause for item in _faults(oracle, by_hand)})


def _faults(oracle: Oracle, evidence: Evidence) -> list[Violation]:
    try:
        return [violation for violation in oracle.check(evidence) if not violation.gap]
    except StageFailure:
        return []  # It cannot be told; that the program fails at all is for ``lowers`` to report.
