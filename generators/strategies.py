"""The strategies: Hypothesis draws a program.

Swarm testing (Groce et al., ISSTA 2012): a program first draws the members that it is to hold, so that rare
combinations are reached and single features are seen alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from generators.builder import Builder
from generators.members import MEMBERS, Member
from generators.program import Program

FAMILIES = tuple(dict.fromkeys(member.family for member in MEMBERS.values()))
SIZES = (1, 2, 1, 2, 3, 4, 5, 8, 18, 22)
"""Numbers of members: mostly few, because a small program is judged in half the time."""
CALLS = 3
HOSTS = {2: "linear", 3: "conv1d", 4: "conv2d"}
"""By the rank of a weight: the block that is to hold it."""
TRIES = 3


@dataclass(frozen=True)
class Drawn:
    """A program, and the names of the members that it was drawn with."""

    program: Program
    members: tuple[str, ...]


def members_of(families: Iterable[str]) -> list[str]:
    """Names of the members of ``families``, in the order they were registered.

    Raises:
        KeyError: a family that does not exist.
    """
    wanted = set(families)
    unknown = wanted - set(FAMILIES)
    if unknown:
        raise KeyError(f"expected families among {', '.join(FAMILIES)}, got {', '.join(sorted(unknown))}")
    return [member.name for member in MEMBERS.values() if member.family in wanted]


def programs(families: Iterable[str] = FAMILIES) -> st.SearchStrategy[Program]:
    """Valid programs from the members of ``families`` and the consumers."""
    names = members_of({*families, "consumers"})
    return draws(tuple(names)).map(lambda drawn: drawn.program)


@st.composite
def draws(draw: Any, names: tuple[str, ...]) -> Drawn:
    """Valid programs that hold some of the named members."""
    pool = [MEMBERS[name] for name in names]
    swarm: list[Member] = []
    for _ in range(draw(st.sampled_from(SIZES))):
        fits = [one for one in pool if one not in swarm and all(one.compatible(other) for other in swarm)]
        weighted = [one for one in fits for _ in range(one.often)]
        if weighted:
            swarm.append(draw(st.sampled_from(weighted)))
    return build(draw, [member.name for member in swarm])


def build(draw: Any, names: Sequence[str]) -> Drawn:
    """The program that holds the named members, its choices made by ``draw``."""
    b = Builder(draw, names)
    for found in [one for one in b.pending if one.kind == "whole"]:
        b.place(found)
    last = [one for one in b.pending if one.kind == "method"]
    b.pending = [one for one in b.pending if one.kind != "method"]
    if not b.pending:
        b.block(MEMBERS["linear"])
    tries = 0
    while b.pending and tries < TRIES * len(names):
        tries += 1
        first = b.pending[0]
        b.block(first if first.kind == "block" else MEMBERS[_host(b, first)])
    for found in last:
        b.place(found)
    b.finish_method()
    return Drawn(b.program(CALLS), tuple(b.placed))


def _host(b: Builder, member: Member) -> str:
    """A block that can hold a member which is no block."""
    if member.kind == "layer":
        return b.pick([f"{host}-layer" for rank, host in HOSTS.items() if member.admits((4,) * rank)])
    if member.kind == "weight" and not b.lowers(member):
        return "weight-on-activation"
    hosts = [host for rank, host in HOSTS.items() if member.admits((4,) * rank)]
    return b.pick(hosts) if hosts else "computed-bias"
