"""Comparison of outputs with eager, and the tolerance, which is derived and not tuned.

The error of a float32 program is bounded by the standard forward error analysis (Higham, *Accuracy and
Stability of Numerical Algorithms*, ch. 3): a dot product of length n has a relative error of at most n u of
the sum of magnitudes, u = 2**-24. The sum of n over the program's reductions, times the largest magnitude of
the float64 reference, stands for that bound. Where values cancel, or a norm divides by next to nothing, the
program itself amplifies rounding errors: a few times eager's own error is allowed, and a few times what comes
of numbers that are shaken by a rounding error. All are orders of magnitude below the effect of a wrong
weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from oracles.evidence import Evidence
from oracles.original import Original

UNIT, HALF_UNIT = 2.0**-24, 2.0**-11
"""Unit roundoff of float32, and of float16."""
EAGER_FACTOR = 8
"""Summation order differs between kernels; it moves the error by a small factor, not by a magnitude."""
QUANTIZED_STEP = 1 / 128
"""A value on a rounding boundary of an 8-bit grid over [-m, m] may fall to either side: a step of m/128."""


@dataclass(frozen=True)
class Difference:
    """An output that is not what it should be.

    ``goal``: (call, output, allowed distance). ``stateful``: state is to blame, not the arithmetic.
    """

    expected: str
    got: str
    goal: tuple[int, int, float]
    stateful: bool


def differences(evidence: Evidence) -> Iterator[Difference]:
    """The outputs that differ from the reference beyond the tolerance, call by call.

    Raises:
        StageFailure: the program does not run.
    """
    original = evidence.original
    for index, (method, _) in enumerate(original.calls):
        got, wanted = evidence.outputs[index], original.reference[index]
        if len(got) != len(wanted):
            goal = (index, 0, 0.0)
            yield Difference(f"{len(wanted)} outputs of {method}", f"{len(got)} outputs", goal, False)
            continue
        # Methods of one loaded file do not share state, so that what another one wrote is never seen.
        free = original.random_outputs(method) | original.foreign_outputs(method)
        stateful = original.stateful_outputs(method) if index else frozenset()
        for position in range(len(wanted)):
            where = f"call {index} of {method}, output {position}"
            found = _different(evidence, index, position, position in free, where)
            if found is not None:
                expected, seen, allowed = found
                yield Difference(expected, seen, (index, position, allowed), position in stateful)


def _different(
    evidence: Evidence, index: int, position: int, free: bool, where: str
) -> tuple[str, str, float] | None:
    original = evidence.original
    got, wanted = evidence.outputs[index][position], original.reference[index][position]
    if not isinstance(wanted, torch.Tensor):
        return None if got == wanted else (f"{where}: {wanted}", f"{got}", 0.0)
    if not isinstance(got, torch.Tensor) or got.shape != wanted.shape:
        shape = list(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
        return f"{where}: shape {list(wanted.shape)}", f"shape {shape}", 0.0
    if free or not wanted.numel():
        return None
    allowed = tolerance(original, index, position)
    off = distance(got, wanted)
    if off > allowed:
        # Asked only now, because it costs a lowering or another run.
        if quantized(original):
            allowed = max(allowed, _stock_distance(evidence, index, position))
        else:
            allowed = max(allowed, amplified(original, index, position))
    if off <= allowed:
        return None
    worst = int(_gap(got, wanted).argmax())
    return (
        f"{where}: {wanted.flatten()[worst]:.6g} at element {worst}, within {allowed:.2g}",
        f"{got.flatten()[worst]:.6g}, off by {off:.3g}",
        allowed,
    )


def quantized(original: Original) -> bool:
    """Whether the program rounds to a grid somewhere."""
    facts = original.facts
    return bool(original.quantization_ops) if facts is None else facts.quantized


def tolerance(original: Original, index: int, position: int) -> float:
    """The largest absolute difference that rounding explains, for one output of one call."""
    wanted, eager = original.reference[index][position], original.eager[index][position]
    magnitude = float(wanted.double().abs().nan_to_num(0, 0, 0).max())
    half = original.facts is not None and original.facts.half
    allowed = (HALF_UNIT if half else UNIT) * original.reductions * (index + 1) * max(magnitude, 1.0)
    if quantized(original):
        roundings = sum(n for op, n in original.quantization_ops.items() if ".quantize" in op)
        return max(allowed, QUANTIZED_STEP * magnitude * max(1, roundings))
    return max(allowed, EAGER_FACTOR * distance(eager, wanted))


def amplified(original: Original, index: int, position: int) -> float:
    """The largest absolute difference that the program itself makes of rounding errors, in one output."""
    shaken, eager = original.shaken[index][position], original.eager[index][position]
    return EAGER_FACTOR * distance(shaken, eager)


def _stock_distance(evidence: Evidence, index: int, position: int) -> float:
    """How far stock lowering is from the reference: the subject need not be nearer."""
    if evidence.stock is evidence:
        return 0.0
    return distance(evidence.stock.outputs[index][position], evidence.original.reference[index][position])


def _gap(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Element-wise distance in float64; NaN and infinity are equal to themselves and far from all else."""
    a, b = got.double().flatten(), wanted.double().flatten()
    return torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs().nan_to_num(math.inf))


def distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest absolute difference of two tensors of one shape."""
    return float(_gap(got, wanted).max()) if wanted.numel() else 0.0
