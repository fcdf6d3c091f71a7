"""What the parent asks the judging child, and what the child answers. Plain data, as JSON on the wire."""

from __future__ import annotations

import msgspec

from generators.program import Program
from oracles.catalogue import ORACLES
from oracles.verdict import Verdict

ALL = tuple(ORACLES)


class Request(msgspec.Struct, frozen=True, tag="judge"):
    """One program, the subject's name, the oracles to ask, and whether to ask who is to blame."""

    program: Program
    subject: str
    oracles: tuple[str, ...] = ALL
    attribute: bool = True


class CheckRequest(msgspec.Struct, frozen=True, tag="check"):
    """A saved program to check, and the subject's name."""

    path: str
    subject: str


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """A request that cannot be answered because of what the user gave: one sentence."""

    reason: str


class Column(msgspec.Struct, frozen=True):
    """One column of the table: what lowering gives with one fold. ``failure`` where it gives nothing."""

    name: str
    delegates: int | None = None
    outside: tuple[str, ...] = ()
    absolute: float | None = None
    relative: float | None = None
    pte_bytes: int | None = None
    failure: str = ""


class Check(msgspec.Struct, frozen=True, tag="table"):
    """What ``check`` found: the two columns, and the verdict of every oracle by name."""

    columns: tuple[Column, ...]
    verdict: Verdict
    oracles: tuple[str, ...] = tuple(ORACLES)
