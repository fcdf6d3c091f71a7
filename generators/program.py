"""The ``Program``: a small typed description of a torch module and of how it is called.

Plain frozen data. Equality, hashing and JSON need no torch. A program that was decoded is well-formed
only after ``generators.validate.validate`` has looked at it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal

import msgspec

VERSION = 1

Scalar = bool | int | float | str
Attribute = Scalar | tuple[int, ...]
Target = Literal["weight", "bias"]
Attributes = dict[str, Attribute]


class ProgramError(ValueError):
    """A program that cannot be used: one sentence that names the JSON path, what was expected, what came."""


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Frozen, strict data: an unknown field in a file is an error, not a surprise."""


class Tensor(Struct, frozen=True):
    """A tensor that the module owns.

    A ``parameter`` or ``buffer`` is an attribute of the module; a ``constant`` is a ``torch.tensor([...])``
    literal of at most one dimension in the body of each method that reads it.
    """

    name: str
    role: Literal["parameter", "buffer", "constant"]
    shape: tuple[int, ...]
    values: Literal["randn", "zeros", "ones"] = "randn"


class Parametrization(Struct, frozen=True):
    """A ``torch.nn.utils.parametrize`` parametrization of one tensor of a layer."""

    kind: str
    target: Target = "weight"


class Layer(Struct, frozen=True):
    """A ``torch.nn`` layer that the module owns, e.g. ``Conv1d``, with its parametrizations in order."""

    name: str
    kind: str
    attrs: Attributes = {}
    parametrizations: tuple[Parametrization, ...] = ()


class Input(Struct, frozen=True):
    """A positional input: float32 ``randn``, or int64 below ``high`` where ``high`` is given."""

    name: str
    shape: tuple[int, ...]
    high: int | None = None


class Step(Struct, frozen=True):
    """One op of a method in SSA form: ``outs = op(*args, **attrs)``. Args name values; attrs are literals."""

    op: str
    args: tuple[str, ...] = ()
    outs: tuple[str, ...] = ()
    attrs: Attributes = {}


class Method(Struct, frozen=True):
    """A method of the module: inputs, steps in order, and the names of the values it returns."""

    name: str
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]


class Call(Struct, frozen=True):
    """One call of a method with inputs seeded by ``seed``; state persists from call to call."""

    method: str
    seed: int = 0


class Program(Struct, frozen=True):
    """A module (tensors, layers, methods), how it is quantized, and the calls it is judged on."""

    methods: tuple[Method, ...]
    calls: tuple[Call, ...]
    tensors: tuple[Tensor, ...] = ()
    layers: tuple[Layer, ...] = ()
    quantization: str | None = None
    version: int = VERSION

    def __hash__(self) -> int:
        return hash(encode(self))

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that name this program."""
        return hashlib.sha256(encode(self)).hexdigest()[:16]

    @property
    def steps(self) -> int:
        """Number of steps over all methods."""
        return sum(len(method.steps) for method in self.methods)

    def walk(self) -> Iterator[tuple[Method, Step]]:
        """Every step with its method, in program order."""
        for method in self.methods:
            for step in method.steps:
                yield method, step


def encode(program: Program) -> bytes:
    """The program as canonical JSON (UTF-8), without its ``version`` while that is the default."""
    return msgspec.json.encode(program, order="sorted")


def decode(data: bytes) -> Program:
    """The program in ``data``.

    Raises:
        ProgramError: not JSON, a field that is missing, unknown or of a wrong type, or another version.
    """
    try:
        program = msgspec.json.decode(data, type=Program)
    except msgspec.MsgspecError as error:
        raise ProgramError(f"expected a program as JSON: {error}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise ProgramError(f"expected a program as JSON: {type(error).__name__}") from None
    check_version(program)
    return program


def check_version(program: Program) -> None:
    """Raises ``ProgramError`` unless this release can read the program's version."""
    if program.version != VERSION:
        raise ProgramError(
            f"$.version: expected {VERSION}, the version this release reads, got {program.version}"
        )
