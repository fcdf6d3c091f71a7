"""The strategies: Hypothesis draws a program.

Swarm testing (Groce et al., ISSTA 2012): a program first draws the members that it may use, so that rare
combinations are reached and single features are seen alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from generators import factories, mutations, parametrizations, quantization, randomness
from generators.builder import Builder
from generators.consumers import FAMILY as CONSUMERS
from generators.members import MEMBERS, Shape, of_kind
from generators.program import Program

FAMILIES = tuple(
    module.FAMILY for module in (parametrizations, mutations, factories, randomness, quantization)
)
SHAPES = ((2, 4), (2, 4, 6), (1, 4, 5, 5))
GROUP = 32
BLOCKS = (1, 2, 1, 3, 2, 5)
"""Numbers of blocks: mostly few, because a small program is judged in half the time."""
CALLS = 3
HALF = (True, False)
OFTEN = 4
"""PT2E exports, calibrates and converts: such a program costs several times any other."""


def members_of(families: Iterable[str]) -> list[str]:
    """Names of the members of ``families``, in the order they were registered.

    Raises:
        KeyError: a family that does not exist.
    """
    wanted = set(families)
    unknown = wanted - {member.family for member in MEMBERS.values()}
    if unknown:
        raise KeyError(f"expected families among {', '.join(FAMILIES)}, got {', '.join(sorted(unknown))}")
    return [member.name for member in MEMBERS.values() if member.family in wanted]


@st.composite
def programs(draw: Any, families: tuple[str, ...] = FAMILIES) -> Program:
    """A valid program from the members of ``families`` and the GEMM consumers."""
    flags = {name: draw(st.booleans()) for name in members_of(families)}
    members = frozenset(name for name, on in flags.items() if on) | set(members_of([CONSUMERS]))
    b = Builder(draw, members)
    flows = [member for member in of_kind("whole") if member.name in members]
    flows = [member for member in flows for _ in range(1 if member.name.startswith("pt2e") else OFTEN)]
    if flows and not b.pick(HALF):
        b.pick(flows).draw(b)
    shape: Shape = b.pick(SHAPES)
    if b.quantization and b.quantization.startswith("torchao"):
        # torchao's groups of 32 must divide a linear's input features.
        b.widths = (GROUP,)
        shape = (2, GROUP)
    activation = b.input(shape)
    for _ in range(b.pick(BLOCKS)):
        activation = b.block(activation)
    return b.finish(activation, CALLS)
