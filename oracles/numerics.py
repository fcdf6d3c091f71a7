"""Oracle ``numerics``: the runtime computes what eager computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oracles.oracle import Place, Violation

if TYPE_CHECKING:
    from oracles.evidence import Evidence


class Numerics:
    """Compares every output of every call that does not depend on a random draw."""

    name = "numerics"
    rule = "Outputs equal eager on the XNNPACK runtime, for every call."
    goals = (Place,)
    script = ""

    def check(self, evidence: Evidence) -> Iterator[Violation]:
        from oracles.compare import differences  # needs torch, which knowing the rule does not

        if not evidence.runs:
            return
        found = next(differences(evidence), None)
        # A first difference in a later call, in what depends on state, is for ``mutation`` to report.
        if found is not None and not found.stateful:
            yield Violation(found.expected, found.got, repr(found.goal))
