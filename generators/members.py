"""Members: the named features that a program may hold, and how each is drawn.

A member belongs to a family and is of one of four kinds:

- ``weight``: draws a value of a wanted shape, to be the weight or bias of a consumer or a part of one;
- ``block``: draws steps that take an activation and give an activation;
- ``layer``: a parametrization that may be put on a layer;
- ``whole``: sets something of the program as a whole, such as how it is quantized.

A family module registers its members with the decorators below. Drawing is demand-driven: whoever needs a
value says its shape, so that no draw has to be thrown away for a shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from generators.builder import Builder

Kind = Literal["weight", "block", "layer", "whole"]
Shape = tuple[int, ...]
Admits = Callable[[Shape], bool]


@dataclass(frozen=True)
class Member:
    """A feature: its family, its one-sentence description, the shapes that it admits, how it is drawn."""

    name: str
    family: str
    kind: Kind
    sentence: str
    draw: Callable[..., Any]
    admits: Admits


MEMBERS: dict[str, Member] = {}


def any_shape(shape: Shape) -> bool:
    return True


def named(
    kind: Kind, family: str, name: str, sentence: str, admits: Admits, draw: Callable[..., Any]
) -> None:
    """Registers a member that a table describes: a parametrization or a quantization flow."""
    assert name not in MEMBERS, name
    MEMBERS[name] = Member(name, family, kind, sentence, draw, admits)


def _register(
    kind: Kind, family: str, name: str, admits: Admits
) -> Callable[[Callable[..., str]], Callable[..., str]]:
    def register(draw: Callable[..., str]) -> Callable[..., str]:
        assert draw.__doc__, name
        named(kind, family, name, draw.__doc__.strip().splitlines()[0], admits, draw)
        return draw

    return register


WeightDraw = Callable[["Builder", Shape, int], str]
BlockDraw = Callable[["Builder", str], str]


def weight(family: str, name: str, admits: Admits = any_shape) -> Callable[[WeightDraw], WeightDraw]:
    """Registers ``draw(builder, shape, depth) -> value name`` as a weight expression of ``shape``."""
    return _register("weight", family, name, admits)


def block(family: str, name: str, admits: Admits = any_shape) -> Callable[[BlockDraw], BlockDraw]:
    """Registers ``draw(builder, activation) -> activation``; ``admits`` looks at the activation's shape."""
    return _register("block", family, name, admits)


def of_kind(kind: str) -> list[Member]:
    """The members of one kind, in the order they were registered: the simplest first."""
    return [member for member in MEMBERS.values() if member.kind == kind]
