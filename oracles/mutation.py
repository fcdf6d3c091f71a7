"""Oracle ``mutation``: what a program writes stays written, and is seen by the next call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oracles.oracle import Place, Violation

if TYPE_CHECKING:
    from oracles.evidence import Evidence


class Mutation:
    """Compares the mutated buffers and inputs in the signature, and how state develops over calls."""

    name = "mutation"
    rule = (
        "The mutated buffers and inputs in the signature are those that the program writes, "
        "and state follows eager call after call."
    )
    goals = (Place, list[str])
    script = """written = sorted(
    str(spec.target)
    for name in programs
    for spec in edge.exported_program(name).graph_signature.output_specs
    if "MUTATION" in spec.kind.name
)
print("written:", written, "expected:", {goal})
raise SystemExit(written != {goal})"""

    def check(self, evidence: Evidence) -> Iterator[Violation]:
        from oracles.compare import differences  # needs torch, which knowing the rule does not

        for method, expected in evidence.original.written.items():
            got = evidence.mutated[method]
            if got != expected:
                all_written = sorted(n for names in evidence.original.written.values() for n in names)
                yield Violation(
                    f"{method} writes {_names(expected)}",
                    f"{method} writes {_names(got)}",
                    repr(all_written),
                )
                return
        if evidence.runs and any(evidence.original.written.values()):
            found = next(differences(evidence), None)
            if found is not None and found.stateful:
                yield Violation(found.expected, found.got, repr(found.goal))


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
