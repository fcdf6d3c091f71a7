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
    literal of at most one dimension in the body of each method that reads it. ``values`` are those of
    floating-point tensors, where ``mixed`` holds zeros, large and tiny ones; int64 values are below
    ``high``, int8 ones also from ``-high``. ``layout`` is how the memory lies: ``sliced`` and ``strided`` are
    parts of a larger storage. ``tied`` is the name of an earlier tensor that this one is another name of.
    ``tag`` names the external file that the exported tensor is to land in.
    """

    name: str
    role: Literal["parameter", "buffer", "constant"]
    shape: tuple[int, ...]
    values: Literal["randn", "zeros", "ones", "positive", "mixed"] = "randn"
    dtype: Literal["float32", "float16", "int64", "int8", "bool"] = "float32"
    high: int | None = None
    layout: Literal["plain", "sliced", "strided", "transposed", "expanded", "channels_last"] = "plain"
    persistent: bool = True
    requires_grad: bool = True
    tied: str | None = None
    tag: str | None = None


class Parametrization(Struct, frozen=True):
    """A parametrization of one tensor of a layer.

    The ``shared`` ones of a kind are one module, registered on several tensors.
    """

    kind: str
    target: Target = "weight"
    shared: bool = False


class Layer(Struct, frozen=True):
    """A ``torch.nn`` layer that the module owns, e.g. ``Conv1d``, with its parametrizations in order.

    ``nested``: it belongs to the submodule ``inner`` and not to the module itself.
    """

    name: str
    kind: str
    attrs: Attributes = {}
    parametrizations: tuple[Parametrization, ...] = ()
    nested: bool = False

    @property
    def path(self) -> str:
        """The name by which the module reaches the layer, such as ``inner.conv0``."""
        return f"inner.{self.name}" if self.nested else self.name


class Dim(Struct, frozen=True):
    """A dynamic dimension, from ``low`` to ``high``."""

    name: str
    low: int
    high: int


class Input(Struct, frozen=True):
    """A positional input: float32 ``randn``, or int64 below ``high`` where ``high`` is given.

    ``dims`` is empty, or says for each dimension the name of the ``Dim`` that it is, "" where it is static;
    ``shape`` then holds the sizes that the program is exported at.
    """

    name: str
    shape: tuple[int, ...]
    high: int | None = None
    dims: tuple[str, ...] = ()

    def sized(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """The shape where the dynamic dimensions have ``sizes``."""
        dims = self.dims or ("",) * len(self.shape)
        return tuple(sizes.get(name, size) for name, size in zip(dims, self.shape, strict=True))


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
    """One call of a method with inputs seeded by ``seed``; state persists from call to call.

    ``sizes``: of dynamic dimensions, by name; the others have the size that the program is exported at.
    """

    method: str
    seed: int = 0
    sizes: dict[str, int] = {}


class Program(Struct, frozen=True):
    """A module (tensors, layers, methods), how it is quantized and exported, and the calls it is judged on.

    ``branches`` are what ``cond`` steps choose from. ``train``: the module is in training mode.
    ``strict``, ``grad`` and ``joint``: exported by bytecode tracing, outside ``torch.no_grad()``, and as the
    forward-backward joint graph of its first output, a loss.
    """

    methods: tuple[Method, ...]
    calls: tuple[Call, ...]
    tensors: tuple[Tensor, ...] = ()
    layers: tuple[Layer, ...] = ()
    branches: tuple[Method, ...] = ()
    dims: tuple[Dim, ...] = ()
    quantization: str | None = None
    train: bool = False
    strict: bool = False
    grad: bool = False
    joint: bool = False
    version: int = VERSION

    def __hash__(self) -> int:
        return hash(encode(self))

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that name this program."""
        return hashlib.sha256(encode(self)).hexdigest()[:16]

    @property
    def steps(self) -> int:
        """Number of steps over all methods and branches."""
        return sum(len(method.steps) for method in (*self.methods, *self.branches))

    def walk(self) -> Iterator[tuple[Method, Step]]:
        """Every step with its method or branch, in program order."""
        for method in (*self.methods, *self.branches):
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
