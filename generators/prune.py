"""``prune``: the program without what nothing uses."""

from __future__ import annotations

import msgspec

from generators.program import Method, Program
from generators.storage import WRITES, Storages, canonical
from generators.vocabulary import OPS


def prune(program: Program) -> Program:
    """Drops steps, tensors and layers that no output and no written state needs. Inputs stay."""
    methods = tuple(_prune(program, method) for method in program.methods)
    steps = [step for method in methods for step in method.steps]
    taken = {step.attrs[side] for step in steps if step.op == "cond" for side in ("then", "other")}
    branches = tuple(item for item in program.branches if item.name in taken)
    steps += [step for branch in branches for step in branch.steps]
    read = {arg for step in steps for arg in step.args}
    read |= {output for method in (*methods, *branches) for output in method.outputs}
    read |= {canonical(program, name) for name in read}
    called = {step.attrs.get("layer") for step in steps}
    sized = {method.name: {name for item in method.inputs for name in item.dims} for method in methods}
    return msgspec.structs.replace(
        program,
        methods=methods,
        branches=branches,
        tensors=tuple(item for item in program.tensors if item.name in read),
        layers=tuple(item for item in program.layers if item.name in called),
        dims=tuple(item for item in program.dims if any(item.name in names for names in sized.values())),
        calls=tuple(
            msgspec.structs.replace(
                call, sizes={name: size for name, size in call.sizes.items() if name in sized[call.method]}
            )
            for call in program.calls
        ),
    )


def _prune(program: Program, method: Method) -> Method:
    lasting = {item.name for item in program.tensors} | {item.name for item in method.inputs}
    storages = Storages(program, lasting)
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
