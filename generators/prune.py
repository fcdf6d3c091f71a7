"""``prune``: the program without what nothing uses."""

from __future__ import annotations

import msgspec

from generators.program import Method, Program
from generators.storage import WRITES, Storages
from generators.vocabulary import OPS


def prune(program: Program) -> Program:
    """Drops steps, tensors and layers that no output and no written state needs. Inputs stay."""
    methods = tuple(_prune(program, method) for method in program.methods)
    read = {arg for method in methods for step in method.steps for arg in step.args}
    read |= {output for method in methods for output in method.outputs}
    called = {step.attrs.get("layer") for method in methods for step in method.steps}
    return msgspec.structs.replace(
        program,
        methods=methods,
        tensors=tuple(item for item in program.tensors if item.name in read),
        layers=tuple(item for item in program.layers if item.name in called),
    )


def _prune(program: Program, method: Method) -> Method:
    lasting = {item.name for item in program.tensors} | {item.name for item in method.inputs}
    storages = Storages(lasting)
    roots = []
    for step in method.steps:
        storages.apply(step)
        roots.append(storages.of(step.args[0]) if OPS[step.op].effect in WRITES else None)
    needed = set(method.outputs)
    # Memory that is read at all: a write to it counts, before or after the read that was seen first.
    alive = {storages.of(name) for name in needed} | lasting
    kept = []
    for step, root in zip(reversed(method.steps), reversed(roots), strict=True):
        if needed.intersection(step.outs) or root in alive:
            kept.append(step)
            needed |= set(step.args)
            alive |= {storages.of(arg) for arg in step.args}
    return msgspec.structs.replace(method, steps=tuple(reversed(kept)))
