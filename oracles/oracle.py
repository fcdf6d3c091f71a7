"""What an oracle is: a name, a rule in one sentence, and a check of the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from oracles.evidence import Evidence

RUN_AND_COMPARE = """module = _load_for_executorch_from_buffer(pte)
model, call, output, allowed = build(), *{goal}
for name, seed in CALLS[: call + 1]:
    torch.manual_seed(seed)
    inputs = INPUTS[name]()
    expected = getattr(model, name)(*[item.clone() for item in inputs])
    got = module.run_method(name, inputs)
expected = (expected if isinstance(expected, (tuple, list)) else (expected,))[output]
off = (got[output] - expected).abs().max().item()
print(f"call {call}, output {output}: off by {off}, allowed {allowed}")
return not off <= allowed"""
"""The check of a stand-alone script that runs the calls and compares one output of one of them."""


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


class Oracle(Protocol):
    """A rule and its check. ``script`` is the check as the stand-alone script of a bug report does it."""

    name: str
    rule: str
    script: str

    def check(self, evidence: Evidence) -> Iterator[Violation]:
        """Yields how the evidence breaks the rule; yields nothing where it cannot tell.

        Raises:
            StageFailure: an artefact that the check needs could not be had; ``lowers`` reports that.
        """
        ...
