"""Findings and verdicts: what judging a program comes to, as plain data that needs no torch.

- *upstream*: stock lowering of the same program breaks the same rule, or it breaks in the same way where the
  weights are folded by hand, so the fold is not to blame;
- *gap*: a weight that must fold was left; the model is as slow as before, and nothing is broken;
- *flaky*: the process died, and a second one did not: nobody can be blamed for it;
- *fault*: everything else: the subject broke it.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

Attribution = Literal["fault", "gap", "upstream", "flaky"]

Outcome = Literal["passes", "invalid", "findings"]


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
    def cause(self) -> tuple[str, str, str, str]:
        """What broke, whoever is to blame: oracle, stage, exception and frame."""
        return (self.oracle, self.stage, self.exception, self.frame)

    @property
    def fingerprint(self) -> str:
        """Names this kind of finding, whatever the program: oracle, attribution, exception and frame."""
        parts = (self.attribution, *self.cause)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    """The verdict on one program: ``invalid`` where it does not even run in eager or export.

    ``lowerings`` counts what the verdict cost. ``reason`` says why a program is invalid. ``unjudged``: oracle
    -> the stage that failed before it could tell anything.
    """

    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    lowerings: int = 0
    unjudged: dict[str, str] = {}

    def of(self, *attributions: Attribution) -> list[Finding]:
        """The findings with one of these attributions."""
        return [finding for finding in self.findings if finding.attribution in attributions]
