"""What the strategies draw: the list of members, and statistics over many programs."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from fuzz.campaign import drawn
from fuzz.judging import Judge
from generators.members import MEMBERS, feasible_pairs
from generators.strategies import FAMILIES, Drawn, draws


class MemberError(ValueError):
    """A name that is no member: one sentence."""


class Stats(msgspec.Struct, frozen=True):
    """Statistics over drawn programs.

    ``valid_share``: of the programs, how many export and run in eager. ``pairwise_coverage``: of the pairs of
    members of different families that can be in one program, how many were. ``programs_per_second``: drawing
    alone, on one core. ``members``: name -> share of the programs. ``invalid_reasons``: reason -> programs.
    """

    programs: int
    valid_share: float
    pairwise_coverage: float
    programs_per_second: float
    steps_mean: float
    steps_p95: float
    members: dict[str, float]
    invalid_reasons: dict[str, int]


def names_of(only: str | None) -> tuple[str, ...]:
    """The members named in a comma-separated list; all without one.

    Raises:
        MemberError: a name that is no member.
    """
    if only is None:
        return tuple(MEMBERS)
    names = tuple(dict.fromkeys(name.strip() for name in only.split(",")))
    for name in names:
        if name not in MEMBERS:
            raise MemberError(f"--only: expected members of `foldfuzz generate --list`, got {name!r}")
    return names


def listing() -> str:
    """All families and members with one sentence each, in Markdown."""
    lines = ["# Members of the language", "", "Printed by `foldfuzz generate --list`.", ""]
    for family in FAMILIES:
        lines += [f"## {family}", ""]
        for member in MEMBERS.values():
            if member.family == family:
                lines.append(f"- `{member.name}` ({member.kind}): {member.sentence}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def draw(names: tuple[str, ...], count: int, seed: int) -> list[Drawn]:
    """``count`` distinct programs of the named members. Same seed, same programs."""
    return drawn(draws(names), count, seed, "generate")


def measure(names: tuple[str, ...], count: int, seed: int) -> Stats:
    """Draws programs, then exports and runs each of them in child processes.

    Raises:
        SandboxError: no child can be started.
    """
    started = time.monotonic()
    found = draw(names, count, seed)
    seconds = time.monotonic() - started
    reasons = Counter(_invalid(found))
    steps = sorted(item.program.steps for item in found)
    members = Counter(name for item in found for name in item.members)
    return Stats(
        programs=len(found),
        valid_share=1 - sum(reasons.values()) / len(found),
        pairwise_coverage=_coverage(names, found),
        programs_per_second=len(found) / seconds,
        steps_mean=statistics.mean(steps),
        steps_p95=steps[int(0.95 * (len(steps) - 1))],
        members={name: members[name] / len(found) for name in names},
        invalid_reasons=dict(reasons.most_common()),
    )


def _coverage(names: tuple[str, ...], found: list[Drawn]) -> float:
    feasible = {pair for pair in feasible_pairs() if set(pair) <= set(names)}
    together = {(a, b) for item in found for a in item.members for b in item.members if a < b}
    return len(feasible & together) / len(feasible) if feasible else 1.0


def _invalid(found: list[Drawn]) -> Iterable[str]:
    """Why programs do not export or do not run in eager, in as many children as there are cores."""
    workers = os.cpu_count() or 1
    shares = [found[i::workers] for i in range(workers)]

    def judged(share: list[Drawn]) -> list[str]:
        with Judge("stock") as judge:
            verdicts = [judge(item.program, ()) for item in share]
        return [
            verdict.reason or verdict.findings[0].got for verdict in verdicts if verdict.outcome != "passes"
        ]

    with ThreadPoolExecutor(workers) as pool:
        for reasons in pool.map(judged, shares):
            yield from reasons
