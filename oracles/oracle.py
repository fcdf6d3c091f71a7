"""What an oracle is: a name, a rule in one sentence, and a check of the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from oracles.evidence import Evidence


Place = tuple[int, int, float]
"""A goal of one that compares outputs: call, output, and the distance that is allowed."""


@dataclass(frozen=True)
class Violation:
    """One way in which the evidence breaks a rule: expected against got, in the user's terms.

    ``goal`` is a Python literal of what the stand-alone script has to compare with. ``gap``: something that
    should have been folded was left, and nothing is broken. ``stage``, ``exception`` and ``frame`` are set
    where a stage raised; ``trace`` is its traceback.
    """

    expected: str
    got: str
    goal: str = "None"
    gap: bool = False
    stage: str = ""
    exception: str = ""
    frame: str = ""
    trace: str = ""

    @property
    def cause(self) -> tuple[str, str, str]:
        """Alike where two programs break the rule in the same way: what raised, else what came of it."""
        return (self.stage, self.exception, self.frame) if self.exception else (self.expected, self.got, "")


class Oracle(Protocol):
    """A rule and its check.

    ``goals``: the types that a violation's ``goal`` may have, beside None. ``script`` is the check as the
    stand-alone script of a bug report does it, over ``programs`` (exported, by method), ``edge`` (lowered)
    and ``Partitioner``; empty where running and comparing is all there is to it.
    """

    name: str
    rule: str
    goals: tuple[Any, ...]
    script: str

    def check(self, evidence: Evidence) -> Iterator[Violation]:
        """Yields how the evidence breaks the rule; yields nothing where it cannot tell.

        Raises:
            StageFailure: an artefact that the check needs could not be had; ``lowers`` reports that.
        """
        ...
