"""``validate``: whether a program is well-formed, and in one sentence what is wrong with one that is not.

A case is data from strangers. After this check names are plain identifiers, ops come from the vocabulary
and attributes are literals of the kind that the vocabulary states, so that the renderer cannot be made to
emit code which the vocabulary does not contain.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence

from generators.program import (
    Attributes,
    Input,
    Layer,
    Method,
    Program,
    ProgramError,
    Step,
    check_version,
)
from generators.quantization import QUANTIZATIONS
from generators.storage import WRITES, Storages
from generators.vocabulary import (
    LAYERS,
    OPS,
    PARAMETRIZATIONS,
    Attr,
    Type,
    TypeRuleError,
    layer_bias,
    layer_weight,
)

NAME = re.compile(r"[a-z][a-z0-9_]{0,30}\Z", re.ASCII)
RESERVED = frozenset({"self", "torch", "nn", "parametrize", "parametrizations", "build", "inputs"})
MAX_ELEMENTS = 1 << 24
MAX_STEPS = 2000
MAX_CALLS = 64

Env = dict[str, Type]


def _fail(path: str, expected: str, got: object) -> ProgramError:
    return ProgramError(f"{path}: expected {expected}, got {got!r}"[:400])


def validate(program: Program) -> dict[str, Env]:
    """Checks the program whole and returns the type of every value, by method.

    Raises:
        ProgramError: one sentence with the JSON path, what was expected and what came.
    """
    check_version(program)
    owned = _owned(program)
    if program.quantization is not None and program.quantization not in QUANTIZATIONS:
        raise _fail("$.quantization", f"one of {', '.join(QUANTIZATIONS)}", program.quantization)
    if not program.methods:
        raise _fail("$.methods", "at least one method", [])
    if program.steps > MAX_STEPS:
        raise _fail("$.methods", f"at most {MAX_STEPS} steps", program.steps)
    taken = {layer.name for layer in program.layers} | set(owned)
    envs: dict[str, Env] = {}
    for i, method in enumerate(program.methods):
        path = f"$.methods[{i}]"
        _name(method.name, f"{path}.name", taken | set(envs))
        envs[method.name] = _method(program, method, path, owned, taken)
    if not 0 < len(program.calls) <= MAX_CALLS:
        raise _fail("$.calls", f"from 1 to {MAX_CALLS} calls", len(program.calls))
    for i, call in enumerate(program.calls):
        if call.method not in envs:
            raise _fail(f"$.calls[{i}].method", f"one of {', '.join(envs)}", call.method)
        if not 0 <= call.seed < 2**32:
            raise _fail(f"$.calls[{i}].seed", "a seed from 0 to 2**32 - 1", call.seed)
    return envs


def _name(name: str, path: str, taken: set[str]) -> None:
    if not NAME.match(name) or keyword.iskeyword(name) or name in RESERVED:
        raise _fail(path, "a lower-case identifier of at most 31 characters", name)
    if name in taken:
        raise _fail(path, "a name that is not taken", name)


def _shape(shape: Sequence[int], path: str) -> None:
    if len(shape) > 6 or any(size < 0 or size > MAX_ELEMENTS for size in shape):
        raise _fail(path, f"at most 6 sizes from 0 to {MAX_ELEMENTS}", list(shape))
    if Type(tuple(shape)).elements > MAX_ELEMENTS:
        raise _fail(path, f"at most {MAX_ELEMENTS} elements", list(shape))


def _owned(program: Program) -> Env:
    owned: Env = {}
    for i, tensor in enumerate(program.tensors):
        path = f"$.tensors[{i}]"
        _name(tensor.name, f"{path}.name", set(owned))
        _shape(tensor.shape, f"{path}.shape")
        if tensor.role == "constant" and (len(tensor.shape) > 1 or Type(tensor.shape).elements > 16):
            expected = "an inline constant of at most 16 elements in one dimension"
            raise _fail(f"{path}.shape", expected, list(tensor.shape))
        owned[tensor.name] = Type(tensor.shape)
    names = set(owned)
    for i, layer in enumerate(program.layers):
        path = f"$.layers[{i}]"
        _name(layer.name, f"{path}.name", names)
        names.add(layer.name)
        _layer(layer, path)
    return owned


def _layer(layer: Layer, path: str) -> None:
    kind = LAYERS.get(layer.kind)
    if kind is None:
        raise _fail(f"{path}.kind", f"one of {', '.join(LAYERS)}", layer.kind)
    _attrs(layer.attrs, kind.attrs, f"{path}.attrs")
    try:
        kind.check(layer.attrs)
    except TypeRuleError as error:
        raise ProgramError(f"{path}.attrs: {error}") from None
    _shape(layer_weight(layer).shape, path)
    for i, item in enumerate(layer.parametrizations):
        where = f"{path}.parametrizations[{i}]"
        rule = PARAMETRIZATIONS.get(item.kind)
        if rule is None:
            raise _fail(f"{where}.kind", f"one of {', '.join(PARAMETRIZATIONS)}", item.kind)
        owned = layer_weight(layer) if item.target == "weight" else layer_bias(layer)
        if owned is None:
            raise _fail(f"{where}.target", "a tensor that the layer has", item.target)
        earlier = [other for other in layer.parametrizations[:i] if other.target == item.target]
        if rule.first and earlier:
            raise _fail(where, f"{item.kind} before any other of the {item.target}", earlier[0].kind)
        if not rule.admits(owned.shape):
            raise _fail(where, f"a shape that {item.kind} admits", list(owned.shape))


def _attrs(attrs: Attributes, rules: dict[str, Attr], path: str) -> None:
    if set(attrs) != set(rules):
        raise _fail(path, f"exactly {sorted(rules)}", sorted(attrs))
    for name, rule in rules.items():
        problem = rule.problem(attrs[name])
        if problem is not None:
            raise _fail(f"{path}.{name}", problem, attrs[name])


def _input(item: Input, path: str, taken: set[str]) -> Type:
    _name(item.name, f"{path}.name", taken)
    _shape(item.shape, f"{path}.shape")
    if item.high is not None and not 0 < item.high <= MAX_ELEMENTS:
        raise _fail(f"{path}.high", f"a bound from 1 to {MAX_ELEMENTS}", item.high)
    return Type(item.shape, "float32" if item.high is None else "int64")


def _method(program: Program, method: Method, path: str, owned: Env, taken: set[str]) -> Env:
    env = dict(owned)
    names = set(taken)
    for i, item in enumerate(method.inputs):
        env[item.name] = _input(item, f"{path}.inputs[{i}]", names)
        names.add(item.name)
    storages = Storages(env)
    fixed = {tensor.name for tensor in program.tensors if tensor.role != "buffer"}
    for i, step in enumerate(method.steps):
        where = f"{path}.steps[{i}]"
        types = _step(program, step, where, env)
        _written(step, where, storages, fixed)
        storages.apply(step)
        for j, (out, given) in enumerate(zip(step.outs, types, strict=True)):
            _name(out, f"{where}.outs[{j}]", names)
            names.add(out)
            env[out] = given
    if not method.outputs:
        raise _fail(f"{path}.outputs", "at least one output", [])
    for i, output in enumerate(method.outputs):
        if output not in env:
            raise _fail(f"{path}.outputs[{i}]", "the name of a value", output)
    return env


def _step(program: Program, step: Step, path: str, env: Env) -> list[Type]:
    op = OPS.get(step.op)
    if op is None:
        raise _fail(f"{path}.op", "an op of the vocabulary", step.op)
    low, high = op.arity
    if not low <= len(step.args) <= high:
        raise _fail(f"{path}.args", f"from {low} to {high} arguments", len(step.args))
    for i, arg in enumerate(step.args):
        if arg not in env:
            raise _fail(f"{path}.args[{i}]", "the name of an earlier value", arg)
    _attrs(step.attrs, op.attrs, f"{path}.attrs")
    types = [env[arg] for arg in step.args]
    try:
        given = step_types(program, step, types)
    except TypeRuleError as error:
        raise ProgramError(f"{path}: {step.op}: {error}") from None
    for item in given:
        _shape(item.shape, path)
    statement = op.effect in WRITES and not step.outs
    if len(step.outs) != len(given) and not statement:
        raise _fail(f"{path}.outs", f"{len(given)} names", list(step.outs))
    return [] if statement else given


def step_types(program: Program, step: Step, types: Sequence[Type]) -> list[Type]:
    """Types of a step's results, from the types of its arguments.

    Raises:
        TypeRuleError: the arguments do not fit the op.
    """
    if step.op != "call":
        return OPS[step.op].infer(types, step.attrs)
    layer = next((item for item in program.layers if item.name == step.attrs["layer"]), None)
    if layer is None:
        raise TypeRuleError(f"expected the name of a layer, got {step.attrs['layer']!r}")
    return [LAYERS[layer.kind].infer(types[0], layer.attrs)]


def _written(step: Step, path: str, storages: Storages, fixed: set[str]) -> None:
    """Refuses a write to a parameter or constant, and to memory that ``reshape`` may or may not alias."""
    if OPS[step.op].effect not in WRITES:
        return
    root = storages.of(step.args[0])
    if root in fixed:
        raise _fail(f"{path}.args[0]", "a buffer, an input or a temporary to write to", step.args[0])
    if root in storages.maybe_viewed:
        raise _fail(f"{path}.args[0]", "memory that no reshape has looked at", step.args[0])
