"""Every member of the language, alone: its smallest program, what is known of it, where ExecuTorch stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import find

from fuzz.generating import listing
from generators.facts import RANDOM, STATE, Verdict
from generators.members import MEMBERS
from generators.render import render
from generators.strategies import build
from generators.validate import validate
from oracles import graph
from oracles.evidence import Evidence
from oracles.original import ProgramOriginal
from oracles.stages import StageFailure
from oracles.subject import STOCK

NOT_CORE = ("lower", "SpecViolationError")
STOPS = {
    **dict.fromkeys(("bilinear", "tril-indices"), NOT_CORE),
    **dict.fromkeys(("rand-like", "randn-like", "randint", "normal", "multinomial"), NOT_CORE),
    # As computed weights; folded they are gone before the check of Core ATen.
    **dict.fromkeys(("standardized", "orthogonal", "standardize", "chained"), NOT_CORE),
    "channels-last-storage": ("run", "RuntimeError"),
    # No out variant of the ops per group, of symmetric scales per token, and of torchao's dequantize_affine.
    **dict.fromkeys(("qdq-groups", "qdq-token-scales", "torchao_embedding"), ("serialize", "RuntimeError")),
}
"""Where stock ExecuTorch 1.5.1 cannot lower or run a member: stage, and what it says."""
TEMPORARIES = {"temporary-activation", "out-activation"}
"""In-place updates of what a call computes, which nothing outlives."""
GROWS = {"repeat"}
"""Folding stores twice what the parameter takes."""


def plainest(strategy):
    return find(strategy, lambda value: True)


def alone(name):
    drawn = build(plainest, [name])
    assert name in drawn.members
    return drawn.program


def test_the_list_in_the_docs_is_what_the_command_prints():
    assert Path("docs/members.md").read_text() == listing()


def where_it_stops(original):
    evidence = Evidence(original, STOCK)
    try:
        _ = evidence.lowered if original.facts.stops == "run" else evidence.outputs
    except StageFailure as failure:
        return failure.stage.split(" (")[0], failure.exception
    return "", ""


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_alone(name):
    program = alone(name)
    validate(program)
    original = ProgramOriginal(program, lambda stage: None)
    _ = original.eager, original.reference
    # Against torch's own functionalization, not against a pass.
    for method, functional in original.functional.items():
        assert graph.mutated(functional) == original.facts.written[method], render(program)
    verdicts = {weight.verdict for weight in original.facts.weights}
    family, kind = MEMBERS[name].family, MEMBERS[name].kind
    if kind in ("weight", "layer") and family in ("expressions", "parametrizations"):
        assert verdicts == {Verdict.EITHER if name in GROWS else Verdict.FOLD}
    if family == "randomness":
        labels = {label for outputs in original.facts.outputs.values() for v in outputs for label in v.labels}
        assert RANDOM in labels and Verdict.FOLD not in verdicts
    outputs = original.facts.outputs["forward"]
    buffers = {tensor.name for tensor in program.tensors}
    if family == "mutations" and kind == "block" and name not in TEMPORARIES:
        assert original.facts.written["forward"]
    if family == "mutations" and buffers & original.facts.written["forward"]:
        assert any(STATE in value.labels for value in outputs)
    assert where_it_stops(original) == STOPS.get(name, ("", ""))
