"""Cases and where they are kept.

A case is one program with what named subjects must do on it. Cases are data from strangers: a file is
checked whole before anything of it is used.
"""

from __future__ import annotations

import ast
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from generators.program import VERSION, Program, ProgramError, Struct
from generators.validate import validate
from oracles.catalogue import ORACLES
from oracles.oracle import Place
from oracles.verdict import Finding

CASES = Path(__file__).parent / "cases"
PASSES = "passes"
VERDICT = re.compile(rf"{PASSES}|({'|'.join(ORACLES)}) (fault|gap|upstream|flaky)")
SUBJECT = re.compile(r"[a-z][a-z0-9-]*|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)


class CaseError(ValueError):
    """A case that cannot be used: one sentence with the file, what was expected, and what came."""


class Expectation(Struct, frozen=True):
    """What a subject does on the program: ``passes`` or an oracle with fault, gap, upstream or flaky.

    ``expected``, ``got``, ``goal`` and ``stage`` are the evidence as it was seen when the case was written.
    """

    verdict: str
    expected: str = ""
    got: str = ""
    goal: str = "None"
    stage: str = ""


class Case(Struct, frozen=True):
    """A program, what it is about, where it came from, and what named subjects must do on it."""

    about: str
    origin: str
    expect: dict[str, Expectation]
    program: Program
    version: int = VERSION

    def convicted(self) -> str | None:
        """The first subject that the case convicts of anything, in the order of the file."""
        found = (name for name, item in self.expect.items() if item.verdict != PASSES)
        return next(found, None)


def expectation(finding: Finding) -> Expectation:
    """What a finding says, as an expectation to be kept."""
    verdict = f"{finding.oracle} {finding.attribution}"
    return Expectation(verdict, finding.expected, finding.got, finding.goal, finding.stage)


def load(path: Path) -> Case:
    """The case in ``path``, valid as a whole.

    Raises:
        CaseError: the file cannot be read, is no case, or its program is not valid.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CaseError(f"{path}: expected a readable case, got {error.strerror}") from None
    try:
        case = msgspec.json.decode(data, type=Case)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = str(error) or type(error).__name__
        raise CaseError(f"{path}: expected a case as JSON: {text}") from None
    if case.version != VERSION:
        raise CaseError(f"{path}: $.version: expected {VERSION}, got {case.version}")
    if not case.about.isprintable() or not case.origin.isprintable():
        raise CaseError(f"{path}: $.about and $.origin: expected one line of text, got {case.about[:80]!r}")
    for name, item in case.expect.items():
        if not SUBJECT.fullmatch(name):
            raise CaseError(
                f"{path}: $.expect: expected the name of a subject or package.module:attribute, "
                f"got {name[:80]!r}"
            )
        if not VERDICT.fullmatch(item.verdict):
            raise CaseError(
                f"{path}: $.expect[{name!r}].verdict: expected 'passes' or an oracle "
                f"({', '.join(ORACLES)}) with fault, gap, upstream or flaky, got {item.verdict!r}"
            )
    try:
        validate(case.program)
    except ProgramError as error:
        raise CaseError(f"{path}: $.program{str(error).removeprefix('$')}") from None
    for name, item in case.expect.items():
        _check_goal(item, case.program, f"{path}: $.expect[{name!r}].goal")
    return case


def _check_goal(item: Expectation, program: Program, where: str) -> None:
    """Raises ``CaseError`` unless the goal is one of the oracle's, because scripts hold it as code."""
    try:
        goal = ast.literal_eval(item.goal)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        raise CaseError(f"{where}: expected a Python literal, got {item.goal[:80]!r}") from None
    oracle = item.verdict.split()[0]
    kinds = ORACLES[oracle].goals if oracle in ORACLES else ()
    if goal is not None and not any(_has_type(goal, kind) and _exists(goal, kind, program) for kind in kinds):
        raise CaseError(f"{where}: expected a goal of {oracle} that the program has, got {item.goal[:80]!r}")


def _has_type(goal: Any, kind: Any) -> bool:
    try:
        msgspec.convert(goal, kind)
    except msgspec.ValidationError:
        return False
    return True


def _exists(goal: Any, kind: Any, program: Program) -> bool:
    """Whether the call and the output that a place names are there."""
    if kind != Place:
        return True
    call, output, allowed = goal
    if not 0 <= call < len(program.calls) or not 0 <= allowed < math.inf:
        return False
    method = next(item for item in program.methods if item.name == program.calls[call].method)
    return 0 <= output < len(method.outputs)


def save(case: Case, path: Path) -> Path:
    """Writes the case to ``path``, whole or not at all, and returns the path.

    Raises:
        OSError: the file cannot be written.
    """
    data = msgspec.json.format(msgspec.json.encode(case), indent=2) + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def cases(folder: Path = CASES) -> list[Path]:
    """The case files of ``folder``, sorted by name."""
    return sorted(folder.glob("*.json"))
