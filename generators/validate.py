"""``validate``: whether a program is well-formed, and in one sentence what is wrong with one that is not.

A case is data from strangers. After this check names are plain identifiers, ops come from the vocabulary
and attributes are literals of the kind that the vocabulary states, so that the renderer cannot be made to
emit code which the vocabulary does not contain.
"""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Sequence

import msgspec

from generators.program import (
    Attributes,
    Dim,
    Input,
    Layer,
    Method,
    Program,
    ProgramError,
    Step,
    Tensor,
    check_version,
)
from generators.quantization import QUANTIZATIONS
from generators.storage import WRITES, Storages
from generators.vocabulary import (
    LAYERS,
    OPS,
    PARAMETRIZATIONS,
    Attr,
    Effect,
    Type,
    TypeRuleError,
    expect,
    layer_bias,
    layer_weight,
)

NAME = re.compile(r"[a-z][a-z0-9_]{0,30}\Z", re.ASCII)
RESERVED = frozenset(
    {"self", "torch", "nn", "parametrize", "parametrizations", "prune", "build", "inputs", "inner", "mixed"}
)
MAX_ELEMENTS = 1 << 24
MAX_STEPS = 2000
MAX_CALLS = 64
MAX_SIZE = 64
"""Of a dynamic dimension."""

Env = dict[str, Type]
Branch = tuple[list[Type], Type]
"""Types of the inputs of a branch, and of its output."""


def _fail(path: str, expected: str, got: object) -> ProgramError:
    return ProgramError(f"{path}: expected {expected}, got {got!r}"[:400])


def validate(program: Program) -> dict[str, Env]:
    """Checks the program whole and returns the type of every value, by method and branch.

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
    dims = _dims(program)
    envs: dict[str, Env] = {}
    branches: dict[str, Branch] = {}
    for i, branch in enumerate(program.branches):
        path = f"$.branches[{i}]"
        _name(branch.name, f"{path}.name", taken | set(envs))
        _pure(branch, path)
        env = envs[branch.name] = _Checker(program, branch, path, owned, {}).run({})
        branches[branch.name] = [env[item.name] for item in branch.inputs], env[branch.outputs[0]]
    bounds = [{name: dim.low for name, dim in dims.items()}, {name: dim.high for name, dim in dims.items()}]
    for i, method in enumerate(program.methods):
        path = f"$.methods[{i}]"
        _name(method.name, f"{path}.name", taken | set(envs))
        for sizes in (*(bounds if dims else ()), {}):
            envs[method.name] = _Checker(program, method, path, owned, branches).run(sizes)
    _calls(program, dims)
    if program.joint:
        _loss(program, envs)
    return envs


def _dims(program: Program) -> dict[str, Dim]:
    dims: dict[str, Dim] = {}
    for i, dim in enumerate(program.dims):
        _name(dim.name, f"$.dims[{i}].name", set(dims))
        if not 0 < dim.low < dim.high <= MAX_SIZE:
            raise _fail(f"$.dims[{i}]", f"0 < low < high <= {MAX_SIZE}", (dim.low, dim.high))
        dims[dim.name] = dim
    return dims


def _calls(program: Program, dims: dict[str, Dim]) -> None:
    names = {method.name: {dim for item in method.inputs for dim in item.dims} for method in program.methods}
    if not 0 < len(program.calls) <= MAX_CALLS:
        raise _fail("$.calls", f"from 1 to {MAX_CALLS} calls", len(program.calls))
    for i, call in enumerate(program.calls):
        if call.method not in names:
            raise _fail(f"$.calls[{i}].method", f"one of {', '.join(names)}", call.method)
        if not 0 <= call.seed < 2**32:
            raise _fail(f"$.calls[{i}].seed", "a seed from 0 to 2**32 - 1", call.seed)
        for name, size in call.sizes.items():
            dim = dims.get(name)
            if dim is None or name not in names[call.method] or not dim.low <= size <= dim.high:
                raise _fail(f"$.calls[{i}].sizes", f"sizes within the dims of {call.method}", {name: size})


def _pure(branch: Method, path: str) -> None:
    """A branch may be taken or not: torch.cond wants it free of writes and of branches of its own."""
    for i, item in enumerate(branch.inputs):
        if item.dims:
            raise _fail(f"{path}.inputs[{i}].dims", "static operands of a branch", list(item.dims))
    for i, step in enumerate(branch.steps):
        # An op that does not exist is for the checker to report.
        if step.op in OPS and OPS[step.op].effect in (*WRITES, Effect.RANDOM):
            raise _fail(f"{path}.steps[{i}].op", "an op without effects in a branch", step.op)
    if len(branch.outputs) != 1:
        raise _fail(f"{path}.outputs", "one output", list(branch.outputs))


def _loss(program: Program, envs: dict[str, Env]) -> None:
    for i, method in enumerate(program.methods):
        given = envs[method.name][method.outputs[0]]
        if given != Type(()):
            raise _fail(f"$.methods[{i}].outputs[0]", "a loss, float32 without dimensions", str(given))


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
        _tensor(program, tensor, path)
        owned[tensor.name] = Type(tensor.shape, tensor.dtype)
    names = set(owned)
    for i, layer in enumerate(program.layers):
        path = f"$.layers[{i}]"
        _name(layer.name, f"{path}.name", names)
        names.add(layer.name)
        _layer(layer, path)
    return owned


def _tensor(program: Program, tensor: Tensor, path: str) -> None:
    elements = Type(tensor.shape).elements
    if tensor.role == "constant" and (len(tensor.shape) > 1 or elements > 16):
        expected = "an inline constant of at most 16 elements in one dimension"
        raise _fail(f"{path}.shape", expected, list(tensor.shape))
    floating = tensor.dtype in ("float32", "float16")
    if tensor.role == "parameter" and not floating:
        raise _fail(f"{path}.dtype", "a floating-point parameter", tensor.dtype)
    if tensor.role == "constant" and tensor.dtype == "int8":
        raise _fail(f"{path}.dtype", "an inline constant of a dtype that a literal has", tensor.dtype)
    most = {"int64": MAX_ELEMENTS, "int8": 127}.get(tensor.dtype)
    if (tensor.high is not None) != (most is not None):
        raise _fail(f"{path}.high", "a bound for int64 and int8, and for nothing else", tensor.high)
    if tensor.high is not None and most is not None and not 0 < tensor.high <= most:
        raise _fail(f"{path}.high", f"a bound from 1 to {most}", tensor.high)
    rank = {"transposed": 2, "channels_last": 4}.get(tensor.layout, len(tensor.shape))
    if tensor.layout != "plain" and (rank != len(tensor.shape) or not rank or not floating):
        raise _fail(f"{path}.layout", f"plain, for {tensor.dtype}{list(tensor.shape)}", tensor.layout)
    if tensor.layout != "plain" and tensor.role == "constant":
        raise _fail(f"{path}.layout", "plain, for an inline constant", tensor.layout)
    if tensor.tag is not None and not NAME.match(tensor.tag):
        raise _fail(f"{path}.tag", "a lower-case identifier of at most 31 characters", tensor.tag)
    if len({other.tag for other in program.tensors if other.tag}) > 1:
        # The Python runtime loads one external file with a program.
        raise _fail(f"{path}.tag", "one tag in all of the program", tensor.tag)
    if tensor.tied is not None:
        earlier = itertools.takewhile(lambda other: other is not tensor, program.tensors)
        target = next((other for other in earlier if other.name == tensor.tied), None)
        if target is None or target.tied or tensor.role == "constant" or _untied(tensor) != _untied(target):
            raise _fail(f"{path}.tied", "the name of an earlier tensor that is alike", tensor.tied)


def _untied(tensor: Tensor) -> Tensor:
    return msgspec.structs.replace(tensor, name="", tied=None)


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
        if earlier and (rule.first or rule.alone):
            raise _fail(where, f"{item.kind} before any other of the {item.target}", earlier[0].kind)
        if any(PARAMETRIZATIONS[other.kind].alone for other in earlier):
            raise _fail(where, f"nothing beside {earlier[0].kind}", item.kind)
        if item.shared and not (rule.call and "{" not in rule.call):
            raise _fail(f"{where}.shared", f"false, for {item.kind}", item.shared)
        if not rule.admits(owned.shape):
            raise _fail(where, f"a shape that {item.kind} admits", list(owned.shape))


def _attrs(attrs: Attributes, rules: dict[str, Attr], path: str) -> None:
    if set(attrs) != set(rules):
        raise _fail(path, f"exactly {sorted(rules)}", sorted(attrs))
    for name, rule in rules.items():
        problem = rule.problem(attrs[name])
        if problem is not None:
            raise _fail(f"{path}.{name}", problem, attrs[name])


class _Checker:
    """Checks one method or branch, at the given sizes of the dynamic dimensions."""

    def __init__(
        self, program: Program, method: Method, path: str, owned: Env, branches: dict[str, Branch]
    ) -> None:
        self.program, self.method, self.path, self.branches = program, method, path, branches
        self.env, self.names = dict(owned), {*owned, *(layer.name for layer in program.layers)}
        self.fixed = {tensor.name for tensor in program.tensors if tensor.role != "buffer"}

    def run(self, sizes: dict[str, int]) -> Env:
        """The type of every value.

        Raises:
            ProgramError: the method is not well-formed.
        """
        for i, item in enumerate(self.method.inputs):
            self.env[item.name] = self._input(item, f"{self.path}.inputs[{i}]", sizes)
        storages = Storages(self.program, self.env)
        for i, step in enumerate(self.method.steps):
            where = f"{self.path}.steps[{i}]"
            types = self._step(step, where)
            self._written(step, where, storages)
            storages.apply(step)
            for j, (out, given) in enumerate(zip(step.outs, types, strict=True)):
                _name(out, f"{where}.outs[{j}]", self.names)
                self.names.add(out)
                self.env[out] = given
        if not self.method.outputs:
            raise _fail(f"{self.path}.outputs", "at least one output", [])
        for i, output in enumerate(self.method.outputs):
            if output not in self.env:
                raise _fail(f"{self.path}.outputs[{i}]", "the name of a value", output)
        return self.env

    def _input(self, item: Input, path: str, sizes: dict[str, int]) -> Type:
        _name(item.name, f"{path}.name", self.names)
        self.names.add(item.name)
        _shape(item.shape, f"{path}.shape")
        known = {"", *(dim.name for dim in self.program.dims)}
        if item.dims and (len(item.dims) != len(item.shape) or not known.issuperset(item.dims)):
            raise _fail(f"{path}.dims", 'a dim of the program or "" for each dimension', list(item.dims))
        if item.high is not None and not 0 < item.high <= MAX_ELEMENTS:
            raise _fail(f"{path}.high", f"a bound from 1 to {MAX_ELEMENTS}", item.high)
        return Type(item.sized(sizes), "float32" if item.high is None else "int64")

    def _step(self, step: Step, path: str) -> list[Type]:
        op = OPS.get(step.op)
        if op is None:
            raise _fail(f"{path}.op", "an op of the vocabulary", step.op)
        low, high = op.arity
        if not low <= len(step.args) <= high:
            raise _fail(f"{path}.args", f"from {low} to {high} arguments", len(step.args))
        for i, arg in enumerate(step.args):
            if arg not in self.env:
                raise _fail(f"{path}.args[{i}]", "the name of an earlier value", arg)
        _attrs(step.attrs, op.attrs, f"{path}.attrs")
        types = [self.env[arg] for arg in step.args]
        try:
            given = self._types(step, types)
        except TypeRuleError as error:
            raise ProgramError(f"{path}: {step.op}: {error}") from None
        for item in given:
            _shape(item.shape, path)
        statement = op.effect in WRITES and not step.outs
        if len(step.outs) != len(given) and not statement:
            raise _fail(f"{path}.outs", f"{len(given)} names", list(step.outs))
        return [] if statement else given

    def _written(self, step: Step, path: str, storages: Storages) -> None:
        """Refuses a write to a parameter or constant, and to memory that ``reshape`` may or may not alias."""
        if OPS[step.op].effect not in WRITES:
            return
        root = storages.of(step.args[0])
        if root in self.fixed:
            raise _fail(f"{path}.args[0]", "a buffer, an input or a temporary to write to", step.args[0])
        if root in storages.maybe_viewed:
            raise _fail(f"{path}.args[0]", "memory that no reshape has looked at", step.args[0])

    def _types(self, step: Step, types: list[Type]) -> list[Type]:
        """Types of a step's results, from the types of its arguments.

        Raises:
            TypeRuleError: the arguments do not fit the op.
        """
        if step.op == "cond":
            return self._chosen(step, types)
        if step.op != "call":
            return OPS[step.op].infer(types, step.attrs)
        layer = next((item for item in self.program.layers if item.name == step.attrs["layer"]), None)
        if layer is None:
            raise TypeRuleError(f"expected the name of a layer, got {step.attrs['layer']!r}")
        return [LAYERS[layer.kind].infer(types[0], layer.attrs)]

    def _chosen(self, step: Step, types: list[Type]) -> list[Type]:
        """What a ``cond`` gives: the one type that both its branches give for its operands."""
        expect(types[0] == Type((), "bool"), "a condition of bool[]", types[0])
        given = []
        for side in ("then", "other"):
            branch = self.branches.get(str(step.attrs[side]))
            expect(branch is not None, "the name of a branch", repr(step.attrs[side]))
            operands, output = branch or ([], Type(()))
            expect(types[1:] == operands, f"operands of {_listed(operands)}", _listed(types[1:]))
            given.append(output)
        expect(given[0] == given[1], f"branches that both give {given[0]}", given[1])
        return given[:1]


def _listed(types: list[Type]) -> str:
    return ", ".join(map(str, types)) or "nothing"
