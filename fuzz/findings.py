"""Findings on disk: what is about to run, what was found, and what has been judged.

A run's folder is shared by all workers. Every file is written whole or not at all, and every finding is on
disk before its reduction starts. ``running-*.json`` holds the program that a worker is judging; one that is
left over after a crash is the program to look at.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path

import msgspec

from corpus.store import Case, expectation, save
from generators.program import Program
from oracles.verdict import Finding, Verdict

REPEATS = 2
"""How many findings of one kind are reduced, where no exception tells two causes apart."""


class Tally(msgspec.Struct):
    """What has been judged: distinct programs by outcome, lowerings, and findings by kind."""

    judged: int = 0
    valid: int = 0
    lowerings: int = 0
    findings: dict[str, int] = {}
    invalid: dict[str, int] = {}

    def add(self, verdict: Verdict) -> None:
        """Counts one verdict."""
        self.judged += 1
        self.valid += verdict.outcome != "invalid"
        self.lowerings += verdict.lowerings
        for finding in verdict.findings:
            kind = f"{finding.oracle} {finding.attribution}"
            self.findings[kind] = self.findings.get(kind, 0) + 1
        if verdict.reason:
            reason = verdict.reason[:120]
            self.invalid[reason] = self.invalid.get(reason, 0) + 1


def features(program: Program) -> list[str]:
    """The ops, parametrizations and quantization flow that a program holds."""
    names = {step.op for _, step in program.walk() if step.op != "call"}
    for layer in program.layers:
        names |= {layer.kind, *(item.kind for item in layer.parametrizations)}
    return sorted(names | ({program.quantization} if program.quantization else set()))


class Findings:
    """The folder of one run. ``run`` is the same for all workers of the run."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self._claims = folder / f".claims-{run}"
        self._tallies = folder / f"tally-{run}.jsonl"
        self._claims.mkdir(parents=True, exist_ok=True)

    def running(self, program: Program, subject: str) -> None:
        """Puts on disk what is about to run."""
        case = Case("about to run", f"foldfuzz, subject {subject}", {}, program)
        save(case, self.folder / f"running-{os.getpid()}.json")

    def finished(self) -> None:
        """Nothing is running any more."""
        (self.folder / f"running-{os.getpid()}.json").unlink(missing_ok=True)

    def claim(self, finding: Finding) -> bool:
        """Whether this worker is to reduce the finding: the first of its kind, or one of the first few."""
        for repeat in range(1 if finding.exception or finding.attribution == "upstream" else REPEATS):
            try:
                (self._claims / f"{finding.fingerprint}-{repeat}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False

    def raw(self, finding: Finding, program: Program, subject: str) -> Path:
        """Keeps a finding as it was found."""
        path = self.folder / "raw" / f"{finding.oracle}-{finding.fingerprint}-{program.digest}.json"
        return save(_case(finding, program, subject), path)

    def reduced(self, finding: Finding, program: Program, subject: str) -> Path | None:
        """Keeps a reduced finding; None where another of the same kind and features is there already."""
        parts = "\n".join([finding.fingerprint, *features(program)])
        name = hashlib.sha256(parts.encode()).hexdigest()[:8]
        folder = self.folder / "upstream" if finding.attribution == "upstream" else self.folder
        path = folder / f"{finding.oracle}-{finding.attribution}-{name}.json"
        try:
            (self._claims / path.name).touch(exist_ok=False)
        except FileExistsError:
            return None
        return save(_case(finding, program, subject), path)

    def tally(self, verdict: Verdict) -> None:
        """Appends one verdict, at once, so that an interrupted run has counted it."""
        tally = Tally()
        tally.add(verdict)
        with self._tallies.open("ab") as stream:
            stream.write(msgspec.json.encode(tally) + b"\n")

    def total(self) -> Tally:
        """All tallies of the run added up."""
        total = Tally()
        lines = self._tallies.read_bytes().splitlines() if self._tallies.exists() else []
        for item in (msgspec.json.decode(line, type=Tally) for line in lines):
            total.judged += item.judged
            total.valid += item.valid
            total.lowerings += item.lowerings
            total.findings = dict(Counter(total.findings) + Counter(item.findings))
            total.invalid = dict(Counter(total.invalid) + Counter(item.invalid))
        return total


def _case(finding: Finding, program: Program, subject: str) -> Case:
    about = f"{subject}: {finding.oracle} {finding.attribution} with {', '.join(features(program))}"
    return Case(about, "found by foldfuzz", {subject: expectation(finding)}, program)
