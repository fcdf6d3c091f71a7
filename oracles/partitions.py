"""Oracle ``partitions``: the twin is the goal, stock lowering is the floor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oracles.oracle import Violation
from oracles.stages import StageFailure

if TYPE_CHECKING:
    from oracles.evidence import Evidence
    from oracles.lowering import Partitions as Count


class Partitions:
    """Compares delegates and ops left outside with the hand-folded twin, and with no fold at all."""

    name = "partitions"
    rule = (
        "Delegates and ops left outside equal those of the hand-folded twin, "
        "and are never worse than stock's."
    )
    goals = (tuple[int, list[str]],)
    script = """lowered = [edge.exported_program(name) for name in programs]
written = [name for e in lowered for name in e.graph_signature.user_inputs_to_mutate.values()]
back = lambda n: "aten.copy." in str(n.target) and n.args[0].name in written  # one for each functionalization
text = "\\n".join(str(n.target) for e in lowered for n in e.graph.nodes if not back(n))
delegates, outside = text.count("call_delegate"), Counter(re.findall(r"\\w+\\.(?!sym_)\\w+\\.\\w+", text))
print("delegates:", delegates, "outside:", dict(outside), "expected:", *{goal})
fewest, allowed = {goal}[0], Counter({goal}[1])
raise SystemExit(bool(outside - allowed) or (delegates > fewest and not allowed - outside))"""

    def check(self, evidence: Evidence) -> Iterator[Violation]:
        if not evidence.lowers:
            return
        goal = self._goal(evidence)
        got = evidence.partitions
        if goal is not None and not worse(got, goal):
            return
        floor = evidence.stock.partitions if goal is None or evidence.attribute else None
        if floor is not None and worse(got, floor):
            yield Violation(f"not worse than without a fold: {floor}", str(got), floor.goal)
        elif goal is not None:
            names = [weight.name for weight in evidence.original.facts.must_fold()]  # type: ignore[union-attr]
            left = f" (weights that must fold: {', '.join(dict.fromkeys(names))})"
            yield Violation(f"as the hand-folded twin: {goal}{left}", str(got), goal.goal, gap=True)

    def _goal(self, evidence: Evidence) -> Count | None:
        _ = evidence.lowered  # First, so that a twin of equal structure is not lowered again.
        try:
            return evidence.goal
        except StageFailure:
            return None  # Stock lowering does not take the twin; the floor still holds.


def worse(got: Count, than: Count) -> bool:
    """Whether ``got`` leaves ops outside that ``than`` does not, or has more delegates for nothing."""
    if got.outside - than.outside:
        return True
    return got.delegates > than.delegates and not than.outside - got.outside
