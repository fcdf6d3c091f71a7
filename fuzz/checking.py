"""``foldfuzz check``: a program that a user saved, with stock lowering beside the subject's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from fuzz.messages import Check, Column
from oracles.compare import distance
from oracles.evidence import Evidence
from oracles.judge import judge_evidence
from oracles.original import ExportedOriginal
from oracles.stages import StageFailure
from oracles.subject import Subject


class CheckError(ValueError):
    """A file that cannot be checked: one sentence."""


def check(path: Path, subject: Subject, report: Callable[[str], None]) -> Check:
    """Lowers the program in ``path`` without a fold and with the subject's, runs both and compares.

    Raises:
        CheckError: the file is no exported program, or has no example inputs.
    """
    report("load")
    try:
        program = torch.export.load(path)
    except Exception as error:
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise CheckError(
            f"{path}: expected a program saved with torch.export.save, got: {text[:200]}"
        ) from error
    if program.example_inputs is None:
        raise CheckError(f"{path}: expected a program with example inputs, got one without")
    evidence = Evidence(ExportedOriginal(program, report), subject)
    verdict = judge_evidence(evidence)
    columns = [_column(evidence.stock)]
    if evidence.stock is not evidence:
        columns.append(_column(evidence))
    return Check(tuple(columns), verdict)


def _column(evidence: Evidence) -> Column:
    name = evidence.subject.name
    try:
        lowered = evidence.lowered
    except StageFailure as failure:
        return Column(name, failure=str(failure).splitlines()[0][:300])
    outside = tuple(f"{op} x{n}" if n > 1 else op for op, n in sorted(lowered.outside.items()))
    try:
        absolute, relative = _differences(evidence)
    except StageFailure as failure:
        text = str(failure).splitlines()[0][:300]
        return Column(name, lowered.delegates, outside, pte_bytes=len(lowered.pte), failure=text)
    return Column(name, lowered.delegates, outside, absolute, relative, len(lowered.pte))


def _differences(evidence: Evidence) -> tuple[float, float]:
    """Largest absolute difference from the exported program, and that over the largest magnitude."""
    original = evidence.original
    absolute = relative = 0.0
    for index, (method, _) in enumerate(original.calls):
        random = original.random_outputs(method)
        pairs = zip(evidence.outputs[index], original.eager[index], strict=True)
        for position, (got, wanted) in enumerate(pairs):
            if position in random or not isinstance(wanted, torch.Tensor) or not wanted.numel():
                continue
            off = distance(got, wanted)
            absolute = max(absolute, off)
            largest = float(wanted.double().abs().max())
            relative = max(relative, off / largest if largest else off)
    return absolute, relative
