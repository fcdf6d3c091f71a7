"""What a person reads: findings, verdicts and summaries as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from fuzz.campaign import Found, Result
from fuzz.findings import Tally
from fuzz.generating import Stats
from fuzz.messages import Column
from generators.render import render
from oracles.verdict import Finding

TRACE_LINES = 40


def describe(result: Result, subject: str, verbose: bool) -> str:
    """The findings of one target: rule, evidence, source, and what to do next."""
    parts = [_found(item, subject, verbose) for item in result.found]
    if result.repeated:
        parts.append(f"{result.repeated} more finding(s) like those reported in this run.")
    return "\n\n".join(parts)


def _found(item: Found, subject: str, verbose: bool) -> str:
    path = shown(item.path)
    lines = [
        f"{item.finding.attribution.upper()} of subject {subject}",
        *evidence(item.finding),
        "",
        *(f"  {line}".rstrip() for line in render(item.program).splitlines()),
        "",
        f"  case:   {path}",
        f"  replay: foldfuzz replay {path} --subject {subject}",
        f"  script: foldfuzz show {path} --subject {subject}",
    ]
    if verbose and item.finding.trace:
        lines += ["", *item.finding.trace.splitlines()[-TRACE_LINES:]]
    return "\n".join(lines)


def evidence(finding: Finding) -> list[str]:
    """Oracle, rule, expected and got, a line each."""
    lines = [
        f"  oracle:   {finding.oracle}: {finding.rule}",
        f"  expected: {finding.expected}",
        f"  got:      {finding.got}",
    ]
    return [*lines, f"  where:    {finding.frame}"] if finding.frame else lines


def summarize(total: Tally, subject: str, seed: int, folder: Path) -> str:
    """One paragraph on a whole run, whose findings are in ``folder``."""
    if not total.judged:
        return f"no program was judged; subject {subject}, seed {seed}"
    kinds = ", ".join(f"{kind} x{n}" for kind, n in sorted(total.findings.items()))
    lines = [
        f"{total.judged} distinct programs judged, {total.valid} valid "
        f"({100 * total.valid / total.judged:.0f}%), "
        f"{total.lowerings / total.judged:.2f} lowerings a program; subject {subject}, seed {seed}",
        f"findings: {kinds}, kept in {shown(folder)}" if kinds else "findings: none",
    ]
    common = sorted(total.invalid.items(), key=lambda item: -item[1])[:5]
    lines += [f"invalid x{n}: {reason}" for reason, n in common]
    return "\n".join(lines)


def shown(path: Path) -> str:
    """The path as a user would type it: relative to the current directory where it is inside."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def check_rows(columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """Rows of the table that ``check`` prints, a cell a column."""

    def row(name: str, cell: Callable[[Column], str]) -> tuple[str, ...]:
        return (name, *(cell(column) for column in columns))

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    rows = [
        row("delegates", lambda c: number(c.delegates, "d")),
        row(
            "ops left outside",
            lambda c: "-" if c.delegates is None else "\n".join(c.outside) or "none",
        ),
        row("max abs difference", lambda c: number(c.absolute, ".2g")),
        row("max relative difference", lambda c: number(c.relative, ".2g")),
        row(".pte bytes", lambda c: number(c.pte_bytes, ",d")),
    ]
    failed = any(column.failure for column in columns)
    return [*rows, row("failed", lambda c: c.failure or "no")] if failed else rows


def stats_table(stats: Stats) -> Group:
    """Statistics over drawn programs as tables."""
    whole = Table(show_header=False)
    whole.add_row("programs", str(stats.programs))
    whole.add_row("valid", f"{stats.valid_share:.1%}")
    whole.add_row("pairwise coverage", f"{stats.pairwise_coverage:.1%}")
    whole.add_row("programs a second", f"{stats.programs_per_second:.1f}")
    whole.add_row("steps, mean and 95th percentile", f"{stats.steps_mean:.1f}, {stats.steps_p95:g}")
    members = Table("member", "share of programs")
    for name, share in stats.members.items():
        members.add_row(name, f"{share:.2%}")
    reasons = Table("programs", "why invalid")
    for reason, count in stats.invalid_reasons.items():
        reasons.add_row(str(count), escape(reason))
    return Group(whole, members, *([reasons] if stats.invalid_reasons else []))
