"""Oracle ``lowers``: a fold must not stand between a program and its lowering."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oracles.oracle import Violation
from oracles.stages import StageFailure

if TYPE_CHECKING:
    from oracles.evidence import Evidence


class Lowers:
    """Folds, lowers, loads and runs; where any of that raises, the rule may be broken."""

    name = "lowers"
    rule = "What stock lowering accepts, loads and runs, the subject's does too."
    goals = ()
    script = ""

    def check(self, evidence: Evidence) -> Iterator[Violation]:
        try:
            if evidence.lowers:
                _ = evidence.outputs if evidence.runs else evidence.lowered
            else:
                _ = evidence.functional
        except StageFailure as failure:
            yield Violation(
                expected="the program folds, lowers, loads and runs",
                got=f"{failure.exception} in stage {failure.stage}: {_brief(failure.message)}",
                stage=failure.stage.split(" (")[0],
                exception=failure.exception,
                frame=failure.frame,
                trace=failure.trace,
            )


def _brief(message: str) -> str:
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    return " / ".join(lines[:3])[:300]
