"""Members: the named features that a program may hold, and how each is drawn.

A member belongs to a family and is of one of these kinds:

- ``leaf``: draws an owned tensor of a wanted shape, or what is read of it;
- ``weight``: draws a value of a wanted shape, to be the weight or bias of a consumer or a part of one;
- ``block``: draws steps that take an activation and give an activation;
- ``layer``: draws the parametrizations of one tensor of a layer;
- ``whole``: sets something of the program as a whole, before anything is drawn;
- ``method``: adds a method, after everything else.

A family module registers its members with the decorators below. Drawing is demand-driven: whoever needs a
value says its shape, so that no draw has to be thrown away for a shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from generators.builder import Builder

Kind = Literal["leaf", "weight", "block", "layer", "whole", "method"]
Shape = tuple[int, ...]
Admits = Callable[[Shape], bool]


@dataclass(frozen=True)
class Member:
    """A feature: its family, its one-sentence description, the shapes that it admits, how it is drawn.

    ``often``: how often it is drawn, against 4 of a usual one: less what costs much or cannot be lowered,
    more the views by which weights share a storage. ``static``: it needs an activation without
    dynamic dimensions. ``excludes``: names of members, and of families, that it cannot go with.
    """

    name: str
    family: str
    kind: Kind
    sentence: str
    draw: Callable[..., Any]
    admits: Admits
    often: int = 4
    static: bool = False
    excludes: frozenset[str] = frozenset()

    def compatible(self, other: Member) -> bool:
        """Whether both can be in one program."""
        return self.excludes.isdisjoint((other.name, other.family)) and other.excludes.isdisjoint(
            (self.name, self.family)
        )


MEMBERS: dict[str, Member] = {}


def any_shape(shape: Shape) -> bool:
    return True


def rank(*ranks: int) -> Admits:
    """Admits shapes of these numbers of dimensions."""
    return lambda shape: len(shape) in ranks


def ranked(shape: Shape) -> bool:
    """Admits anything but a scalar."""
    return len(shape) > 0


def named(member: Member) -> None:
    """Registers a member that a table describes: a parametrization or a quantization flow."""
    assert member.name not in MEMBERS, member.name
    MEMBERS[member.name] = member


def member(
    kind: Kind, family: str, name: str, admits: Admits = any_shape, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the function below it, whose docstring is the member's sentence.

    The function is called with the builder and, by kind: ``leaf`` (shape), ``weight`` (shape, depth),
    ``block`` (activation); those give the name of a value. ``layer`` (target, shape) gives
    parametrizations. ``whole`` and ``method`` get and give nothing more. ``admits`` looks at the shape that
    is wanted, or at the activation's.
    """

    def register(draw: Callable[..., Any]) -> Callable[..., Any]:
        assert draw.__doc__, name
        sentence = " ".join(draw.__doc__.split())
        named(Member(name, family, kind, sentence, draw, admits, **options))
        return draw

    return register


def leaf(
    family: str, name: str, admits: Admits = any_shape, **options: Any
) -> Callable[[LeafDraw], LeafDraw]:
    """Registers ``draw(builder, shape) -> value name`` as an owned tensor of ``shape``."""
    return member("leaf", family, name, admits, **options)


LeafDraw = Callable[["Builder", Shape], str]
WeightDraw = Callable[["Builder", Shape, int], str]
BlockDraw = Callable[["Builder", str], str]


def weight(
    family: str, name: str, admits: Admits = any_shape, **options: Any
) -> Callable[[WeightDraw], WeightDraw]:
    """Registers ``draw(builder, shape, depth) -> value name`` as a weight expression of ``shape``."""
    return member("weight", family, name, admits, **options)


def block(
    family: str, name: str, admits: Admits = any_shape, **options: Any
) -> Callable[[BlockDraw], BlockDraw]:
    """Registers ``draw(builder, activation) -> activation``; ``admits`` looks at the activation's shape."""
    return member("block", family, name, admits, **options)


def of_kind(kind: str) -> list[Member]:
    """The members of one kind, in the order they were registered: the simplest first."""
    return [item for item in MEMBERS.values() if item.kind == kind]


def feasible_pairs() -> set[tuple[str, str]]:
    """Pairs of members of different families that can be in one program, each pair sorted."""
    return {
        (a.name, b.name)
        for a in MEMBERS.values()
        for b in MEMBERS.values()
        if a.name < b.name and a.family != b.family and a.compatible(b)
    }
