"""The reducer: makes a program smaller while a finding stays the same.

A pass takes a program and yields smaller ones, boldest first; the reducer takes the first that still shows
the finding and starts over, until no pass has anything left. It works on the program's structure, so that
every candidate is valid and most are much smaller, and needs a few dozen judgements where shrinking the
draws would need hundreds. Only the oracle that fired is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from typing import Any

import msgspec

from generators.program import Call, Input, Method, Program, ProgramError, Step, Struct, Tensor
from generators.prune import prune
from generators.storage import WRITES
from generators.validate import validate
from generators.vocabulary import LAYERS, OPS

Pass = Callable[[Program], Iterator[Program]]
Shows = Callable[[Program], bool]

change = msgspec.structs.replace

PROGRAM_OPTIONS = ("train", "strict", "grad", "joint")
TENSOR_OPTIONS = ("values", "dtype", "layout", "persistent", "requires_grad", "tied", "tag")


def reduce(program: Program, shows: Shows, seconds: float) -> Program:
    """The smallest program found within ``seconds`` that ``shows`` still accepts."""
    deadline = time.monotonic() + seconds
    tried = {program.digest}
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(program):
            if time.monotonic() > deadline:
                return program
            if candidate.digest in tried:
                continue
            tried.add(candidate.digest)
            if shows(candidate):
                program, smaller = candidate, True
                break
    return program


def _candidates(program: Program) -> Iterator[Program]:
    """Valid programs, each smaller than ``program`` in some way, without dead parts."""
    for reduce_pass in PASSES:
        for candidate in reduce_pass(program):
            candidate = prune(candidate)
            methods = tuple(_read_inputs(method) for method in candidate.methods)
            candidate = change(candidate, methods=methods)
            try:
                validate(candidate)
            except ProgramError:
                continue
            if _size(candidate) < _size(program):
                yield candidate


def _size(program: Program) -> tuple[int, ...]:
    """What is made smaller, the most important first."""
    parametrizations = sum(len(layer.parametrizations) for layer in program.layers)
    inputs = [item for method in program.methods for item in method.inputs]
    shapes = [*(t.shape for t in program.tensors), *(item.shape for item in inputs)]
    literals = [value for _, step in program.walk() for value in step.attrs.values()]
    literals += [value for layer in program.layers for value in layer.attrs.values()]
    return (
        program.steps + parametrizations,
        len(program.methods) + sum(len(method.outputs) for method in program.methods),
        program.quantization is not None,
        _options(program),
        len(program.calls) + len(inputs) + len(program.tensors),
        sum(len(shape) + sum(shape) for shape in shapes),
        sum(_weight(value) for value in literals),
        sum(call.seed for call in program.calls),
    )


def _options(program: Program) -> int:
    """How many options are not at their default."""
    inputs = [item for method in program.methods for item in method.inputs]
    plain = [_without_options(program, PROGRAM_OPTIONS)]
    plain += [_without_options(tensor, TENSOR_OPTIONS) for tensor in program.tensors]
    plain += [_without_options(layer, ("nested",)) for layer in program.layers]
    plain += [_without_options(p, ("shared",)) for layer in program.layers for p in layer.parametrizations]
    plain += [_without_options(item, ("dims",)) for item in inputs]
    return sum(len(list(options)) for options in plain)


def _weight(value: object) -> int:
    if isinstance(value, tuple):
        return sum(value)
    return round(10 * abs(value)) if isinstance(value, (int, float)) else 0


def _methods(program: Program, change_method: Callable[[Method], Iterator[Method]]) -> Iterator[Program]:
    for i, method in enumerate(program.methods):
        for smaller in change_method(method):
            methods = (*program.methods[:i], smaller, *program.methods[i + 1 :])
            yield change(program, methods=methods)


def one_output(program: Program) -> Iterator[Program]:
    """Returns one output, or all but one."""

    def smaller(method: Method) -> Iterator[Method]:
        if len(method.outputs) > 1:
            for output in method.outputs:
                yield change(method, outputs=(output,))
            for output in method.outputs:
                yield change(method, outputs=tuple(o for o in method.outputs if o != output))

    return _methods(program, smaller)


def one_consumer(program: Program) -> Iterator[Program]:
    """Keeps one GEMM consumer with its weight and bias, on a new input: what most findings come down to."""
    types = validate(program)

    def smaller(method: Method) -> Iterator[Method]:
        for step in reversed(method.steps):
            op = OPS[step.op]
            if op.weight is None and step.op != "call":
                continue
            data = 0 if op.weight is None else op.weight - 1
            fresh = Input(_fresh("x", types[method.name]), types[method.name][step.args[data]].shape)
            alone = change(step, args=(*step.args[:data], fresh.name, *step.args[data + 1 :]))
            steps = tuple(alone if item is step else item for item in method.steps)
            yield change(method, inputs=(*method.inputs, fresh), steps=steps, outputs=step.outs)

    return _methods(program, smaller)


def earlier_output(program: Program) -> Iterator[Program]:
    """Returns an earlier value instead of the last, so that everything after it is dead."""

    def smaller(method: Method) -> Iterator[Method]:
        values = [out for step in method.steps for out in step.outs]
        if len(method.outputs) == 1:
            for value in values:
                if value != method.outputs[0]:
                    yield change(method, outputs=(value,))

    return _methods(program, smaller)


def drop_step(program: Program) -> Iterator[Program]:
    """Drops one step; whoever read its result reads one of its arguments, or an input, instead."""

    def smaller(method: Method) -> Iterator[Method]:
        inputs = [item.name for item in method.inputs]
        for i in reversed(range(len(method.steps))):
            step = method.steps[i]
            steps = method.steps[:i] + method.steps[i + 1 :]
            if OPS[step.op].effect in WRITES and not step.outs:
                yield change(method, steps=steps)
            for stand_in in dict.fromkeys([*step.args, *inputs]):
                yield _renamed(change(method, steps=steps), dict.fromkeys(step.outs, stand_in))

    return _methods(program, smaller)


def read_input(program: Program) -> Iterator[Program]:
    """Reads a new input where a step's result was read, so that what computed it is dead."""
    types = validate(program)

    def smaller(method: Method) -> Iterator[Method]:
        for step in reversed(method.steps):
            for out in step.outs:
                given = types[method.name][out]
                if given.dtype == "float32" and out not in method.outputs:
                    fresh = Input(_fresh("x", types[method.name]), given.shape)
                    grown = change(method, inputs=(*method.inputs, fresh))
                    yield _renamed(grown, {out: fresh.name}, keep=step)

    return _methods(program, smaller)


def read_parameter(program: Program) -> Iterator[Program]:
    """Reads a new parameter where a step's result was read: less of a weight is computed."""
    types = validate(program)
    for i, method in enumerate(program.methods):
        for step in reversed(method.steps):
            for out in step.outs:
                given = types[method.name][out]
                if given.dtype == "float32" and out not in method.outputs:
                    fresh = Tensor(_fresh("w", types[method.name]), "parameter", given.shape)
                    renamed = _renamed(method, {out: fresh.name}, keep=step)
                    methods = (*program.methods[:i], renamed, *program.methods[i + 1 :])
                    yield change(program, methods=methods, tensors=(*program.tensors, fresh))


def _fresh(prefix: str, taken: Container[str]) -> str:
    return next(name for i in range(10_000) if (name := f"{prefix}{i}") not in taken)


def _read_inputs(method: Method) -> Method:
    """The method without the inputs that nothing reads."""
    read = {arg for step in method.steps for arg in step.args} | set(method.outputs)
    return change(method, inputs=tuple(item for item in method.inputs if item.name in read))


def _renamed(method: Method, names: dict[str, str], keep: Step | None = None) -> Method:
    steps = tuple(
        step if step is keep else change(step, args=tuple(names.get(arg, arg) for arg in step.args))
        for step in method.steps
    )
    outputs = tuple(dict.fromkeys(names.get(output, output) for output in method.outputs))
    return change(method, steps=steps, outputs=outputs)


def fewer_calls(program: Program) -> Iterator[Program]:
    """Calls once, or one time less, and seeds inputs with 0."""
    for call in program.calls:
        yield change(program, calls=(call,))
    yield change(program, calls=program.calls[:-1])
    yield change(program, calls=tuple(Call(call.method) for call in program.calls))


def fewer_methods(program: Program) -> Iterator[Program]:
    """Drops a method and its calls."""
    for method in program.methods:
        calls = tuple(call for call in program.calls if call.method != method.name)
        methods = tuple(item for item in program.methods if item is not method)
        yield change(program, methods=methods, calls=calls)


def no_quantization(program: Program) -> Iterator[Program]:
    """Leaves the quantization flow out."""
    if program.quantization is not None:
        yield change(program, quantization=None)


def fewer_parametrizations(program: Program) -> Iterator[Program]:
    """Drops one parametrization of a layer."""
    for i, layer in enumerate(program.layers):
        for j in range(len(layer.parametrizations)):
            left = layer.parametrizations[:j] + layer.parametrizations[j + 1 :]
            layers = (
                *program.layers[:i],
                change(layer, parametrizations=left),
                *program.layers[i + 1 :],
            )
            yield change(program, layers=layers)


def fewer_arguments(program: Program) -> Iterator[Program]:
    """Drops a last argument that the op can do without: a bias, a part of a ``cat``."""

    def smaller(method: Method) -> Iterator[Method]:
        for i, step in enumerate(method.steps):
            if len(step.args) > OPS[step.op].arity[0]:
                shorter = change(step, args=step.args[:-1])
                yield change(method, steps=(*method.steps[:i], shorter, *method.steps[i + 1 :]))

    return _methods(program, smaller)


def plain_options(program: Program) -> Iterator[Program]:
    """Takes one option of the program, a tensor, a layer or an input back to its default."""
    yield from _without_options(program, PROGRAM_OPTIONS)
    for i, tensor in enumerate(program.tensors):
        for plain in _without_options(tensor, TENSOR_OPTIONS):
            yield change(program, tensors=(*program.tensors[:i], plain, *program.tensors[i + 1 :]))
    for i, layer in enumerate(program.layers):
        items = layer.parametrizations
        own = change(layer, parametrizations=tuple(change(item, shared=False) for item in items))
        for plain in (*_without_options(layer, ("nested",)), own):
            yield change(program, layers=(*program.layers[:i], plain, *program.layers[i + 1 :]))

    def static(method: Method) -> Iterator[Method]:
        for i, item in enumerate(method.inputs):
            for plain in _without_options(item, ("dims",)):
                yield change(method, inputs=(*method.inputs[:i], plain, *method.inputs[i + 1 :]))

    yield from _methods(program, static)


def _without_options(item: Struct, names: tuple[str, ...]) -> Iterator[Any]:
    """``item`` with one of the named fields at its default, for each that is not."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(item)}
    for name in names:
        if getattr(item, name) != defaults[name]:
            yield change(item, **{name: defaults[name]})


def plain_attributes(program: Program) -> Iterator[Program]:
    """Sets attributes of layers and steps to their plainest value."""
    for i, layer in enumerate(program.layers):
        for name in LAYERS[layer.kind].attrs:
            for plain in _plainer(layer.attrs[name]):
                smaller = change(layer, attrs={**layer.attrs, name: plain})
                yield change(program, layers=(*program.layers[:i], smaller, *program.layers[i + 1 :]))

    def smaller_steps(method: Method) -> Iterator[Method]:
        for i, step in enumerate(method.steps):
            for name, value in step.attrs.items():
                for plain in _plainer(value):
                    changed = change(step, attrs={**step.attrs, name: plain})
                    yield change(method, steps=(*method.steps[:i], changed, *method.steps[i + 1 :]))

    yield from _methods(program, smaller_steps)


def _plainer(value: object) -> list[bool | int]:
    if isinstance(value, bool):
        return [False] if value else []
    return [plain for plain in (0, 1) if plain < value] if isinstance(value, int) else []


PASSES: tuple[Pass, ...] = (
    one_consumer,
    one_output,
    fewer_methods,
    fewer_calls,
    read_input,
    earlier_output,
    no_quantization,
    drop_step,
    read_parameter,
    fewer_parametrizations,
    fewer_arguments,
    plain_options,
    plain_attributes,
)
"""From those that take most away to those that only make plainer."""
