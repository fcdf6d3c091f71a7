"""The facts against torch itself: what is changed changes what the facts say, and nothing else."""

from __future__ import annotations

from collections import Counter

import torch
from observing import Observed, observe

from fuzz.campaign import drawn
from generators.facts import INPUT, RANDOM, STATE
from generators.members import MEMBERS
from generators.program import Program
from generators.render import render
from generators.strategies import draws
from oracles.original import ProgramOriginal

PROGRAMS = 300
TRIES = 3
MEANS = {INPUT: "inputs", RANDOM: "seed", STATE: "state"}
CHANGED = {INPUT: 0.98, RANDOM: 0.9, STATE: 0.9, "written": 0.95}
"""Share of the labelled values that change. The facts count by whole storages, so that a part of a buffer
that is not the one written is labelled as well; a clamp or a rounding may also hide a change."""
NAMES = tuple(n for n, m in MEMBERS.items() if (m.family, m.kind) != ("quantization", "whole"))
"""Flows replace the module by another one, whose values have no names."""


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.double().nan_to_num(7.25), b.double().nan_to_num(7.25))


def moved(program: Program, one: Observed, other: Observed) -> set[tuple[str, str]]:
    """Method and name of the values that differ in some call."""
    differing = (key for key, value in one.values.items() if not same(value, other.values[key]))
    return {(program.calls[index].method, name) for index, name in differing}


def labelled(original: ProgramOriginal, seen: Observed, label: str) -> set[tuple[str, str]]:
    """Method and name of the values that hold any number, and that the facts give the label."""
    calls = original.program.calls
    held = {(calls[index].method, name) for (index, name), value in seen.values.items() if value.numel()}
    facts = original.facts.values
    # Inline constants are locals as well; they depend on nothing.
    return {key for key in held if key[1] in facts[key[0]] and label in facts[key[0]][key[1]].labels}


def test_values_depend_on_what_the_facts_say():
    expected, changed = Counter(), Counter()
    for item in drawn(draws(NAMES), PROGRAMS, 11, "dependence"):
        original = ProgramOriginal(item.program, lambda stage: None)
        first = observe(original)
        writes = written(original, first)
        expected["written"] += len(writes)
        changed["written"] += sum(not same(first.before[name], first.after[name]) for name in writes)
        for label, means in MEANS.items():
            wanted, found = labelled(original, first, label), set()
            for number in range(1, TRIES + 1):
                found |= moved(item.program, first, observe(original, **{means: number}))
                if wanted <= found:
                    break
            assert found <= wanted, (label, found - wanted, render(item.program))
            expected[label] += len(wanted)
            changed[label] += len(found)
    assert all(expected[label] >= 100 for label in CHANGED), expected
    for label, share in CHANGED.items():
        assert changed[label] >= share * expected[label], (label, changed, expected)


def written(original: ProgramOriginal, seen: Observed) -> set[str]:
    """The buffers that the facts say are written; nothing else may be, by any of its names."""
    names = frozenset().union(*original.facts.written.values())
    tied = {tensor.name: tensor.tied for tensor in original.program.tensors}
    for name, before in seen.before.items():
        if not same(before, seen.after[name]):
            assert name in names or tied.get(name) in names, (name, render(original.program))
    return {name for name in names if name in seen.before}
