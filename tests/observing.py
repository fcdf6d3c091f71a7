"""Runs a program in eager and observes every value in it: what ground truth is checked against."""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass, field
from types import FrameType

import torch

from oracles.original import ProgramOriginal

Values = dict[tuple[int, str], torch.Tensor]


@dataclass
class Observed:
    """``values``: (call, name) -> what the name held when the call returned. ``before``, ``after``: every
    parameter and buffer before the first and after the last call."""

    values: Values = field(default_factory=dict)
    before: dict[str, torch.Tensor] = field(default_factory=dict)
    after: dict[str, torch.Tensor] = field(default_factory=dict)


def observe(original: ProgramOriginal, inputs: int = 0, seed: int = 0, state: int = 0) -> Observed:
    """Observes the calls of a program. Other numbers draw other inputs, give the generator another seed, and
    put other numbers into the buffers that a method writes."""
    model = original._model()
    seen = Observed()
    with torch.no_grad():
        if state:
            _disturb(model, original, state)
        seen.before = _owned(model)
        for index, call in enumerate(original.program.calls):
            given = original._inputs(call.method, call.seed + 1000 * inputs, call.sizes)
            torch.manual_seed(7 + seed + 100 * index)
            seen.values |= {
                (index, name): value for name, value in _locals(model, call.method, given).items()
            }
        seen.after = _owned(model)
    return seen


def _owned(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach().clone() for name, tensor in tensors}


def _disturb(model: torch.nn.Module, original: ProgramOriginal, state: int) -> None:
    torch.manual_seed(state)
    inputs = {item.name for method in original.program.methods for item in method.inputs}
    for name in sorted(frozenset().union(*original.facts.written.values()) - inputs):
        buffer = operator.attrgetter(name)(model)
        if buffer.dtype == torch.bool:
            buffer.logical_not_()
        elif buffer.is_floating_point():
            buffer.add_(torch.randn(buffer.shape).to(buffer.dtype) * state)
        else:
            buffer.add_(state)


def _locals(model: torch.nn.Module, method: str, given: tuple) -> dict[str, torch.Tensor]:
    """The local tensors of a method at the moment when it returns."""
    code = getattr(type(model), method).__code__
    seen: dict[str, torch.Tensor] = {}

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and frame.f_code is code:
            for name, value in frame.f_locals.items():
                if isinstance(value, torch.Tensor):
                    seen[name] = value.detach().clone()

    sys.setprofile(profile)
    try:
        getattr(model, method)(*given)
    finally:
        sys.setprofile(None)
    return seen
