"""Family ``structure``: what a program has beside its ops: methods, outputs, branches, export options."""

from __future__ import annotations

import msgspec

from generators.builder import DEPTH, Builder
from generators.members import block, member, rank
from generators.program import Dim, Input, Parametrization
from generators.vocabulary import Op, Type, add_op

FAMILY = "structure"
BATCH, LENGTH = Dim("batch", 1, 8), Dim("length", 4, 12)

for op in (Op("positive", FAMILY, "{0}.sum() > 0", lambda types, attrs: [Type((), "bool")]),):
    add_op(op)


@block(FAMILY, "extra-output")
def draw_extra_output(b: Builder, x: str) -> str:
    """The activation as one more output."""
    b.extra_outputs.append(x)
    return b.step("relu", x)


@block(FAMILY, "parameter-output")
def draw_parameter_output(b: Builder, x: str) -> str:
    """An output that is a parameter."""
    b.extra_outputs.append(b.tensor("parameter", (4,)))
    return x


@block(FAMILY, "folded-output", lambda shape: len(shape) > 1)
def draw_folded_output(b: Builder, x: str) -> str:
    """A computed weight that is an output as well."""
    shape = (b.channels(), b.shape(x)[-1])
    drawn = b.step("mul", b.weight(shape, DEPTH), b.tensor("parameter", ()))
    b.extra_outputs.append(drawn)
    return b.step("linear", x, drawn)


@block(FAMILY, "unused-parameter")
def draw_unused_parameter(b: Builder, x: str) -> str:
    """A parameter that nothing reads."""
    b.tensor("parameter", (4,))
    return x


@block(FAMILY, "no-inputs")
def draw_no_inputs(b: Builder, x: str) -> str:
    """A linear that no input reaches: its data is a buffer."""
    data = b.tensor("buffer", (2, 4))
    b.extra_outputs.append(b.step("linear", data, b.weight((b.channels(), 4), DEPTH)))
    return x


@block(FAMILY, "nested-module", lambda shape: len(shape) > 1)
def draw_nested(b: Builder, x: str) -> str:
    """A layer that belongs to a submodule."""
    inner, outer = b.shape(x)[-1], b.channels()
    drawn = b.parametrizations((outer, inner), None)
    name = b.layer("Linear", drawn, in_features=inner, out_features=outer, bias=True)
    b.layers[-1] = msgspec.structs.replace(b.layers[-1], nested=True)
    return b.call(name, x)


@block(FAMILY, "called-twice", lambda shape: len(shape) > 1)
def draw_called_twice(b: Builder, x: str) -> str:
    """One layer called twice in a row."""
    inner = b.shape(x)[-1]
    drawn = b.parametrizations((inner, inner), (inner,))
    name = b.layer("Linear", drawn, in_features=inner, out_features=inner, bias=True)
    return b.call(name, b.call(name, x))


@block(FAMILY, "cond", rank(2), static=True, excludes=frozenset({"quantization", "joint"}))
def draw_cond(b: Builder, x: str) -> str:
    """``torch.cond``, whose branches capture weights, one of them computed."""
    shape, inner = b.shape(x), b.shape(x)[-1]
    plain, stored = b.tensor("parameter", (inner, inner)), b.tensor("parameter", (inner, inner))
    then = b.branch(lambda y: b.step("linear", y, b.step("t", stored)), shape)
    # Stock lowering fails on a linear in a branch whose weight is stored as it is.
    other = b.branch(lambda y: b.step("linear", y, b.step("mul", plain, plain)), shape)
    return b.choose(b.step("positive", x), x, then, other)


@member("whole", FAMILY, "dynamic-batch", excludes=frozenset({"joint"}))
def draw_dynamic_batch(b: Builder) -> None:
    """Inputs whose batch may have any size from 1 to 8."""
    b.dims.append(BATCH)


@block(FAMILY, "dynamic-length", static=True, excludes=frozenset({"joint"}))
def draw_dynamic_length(b: Builder, x: str) -> str:
    """A convolution over an input whose length may have any size from 4 to 12."""
    b.dims.append(LENGTH)
    data = b.input((1, 4, 6))
    b.inputs[-1] = Input(data, (1, 4, 6), dims=("", "", LENGTH.name))
    drawn = b.weight((4, 4, 3), DEPTH)
    attrs = {"stride": 1, "padding": 1, "dilation": 1, "groups": 1}
    b.extra_outputs.append(b.step("conv1d", data, drawn, **attrs))
    return x


@member("whole", FAMILY, "strict")
def draw_strict(b: Builder) -> None:
    """Exported by tracing bytecode: ``strict=True``."""
    b.options["strict"] = True


@member("whole", FAMILY, "grad", excludes=frozenset({"mutations"}))
def draw_grad(b: Builder) -> None:
    """Exported outside ``torch.no_grad()``."""
    b.options["grad"] = True


NOT_JOINT = frozenset(
    {"mutations", "quantization", "second-method", "tied", "tied-embedding", "shared-parametrization"}
)
"""torch finds no gradient through a rounding, nor for a parameter of two names."""


@member("whole", FAMILY, "joint", excludes=NOT_JOINT, often=4)
def draw_joint(b: Builder) -> None:
    """The forward-backward joint graph of a loss."""
    b.options["joint"] = True


@block(FAMILY, "external-tag", lambda shape: len(shape) > 1)
def draw_external_tag(b: Builder, x: str) -> str:
    """A computed weight whose parameter is tagged to land in an external file."""
    shape = (b.channels(), b.shape(x)[-1])
    return b.step("linear", x, b.step("t", b.tensor("parameter", shape[::-1], tag="weights")))


@member("method", FAMILY, "second-method")
def draw_second_method(b: Builder) -> None:
    """A second method that computes its weight from a parameter and a layer of the first."""
    shared = b.layer("Linear", [Parametrization("weight_norm")], in_features=4, out_features=4, bias=True)
    b.streams.append(b.call(shared, b.input((2, 4))))
    b.finish_method()
    b.begin_method("decode")
    b.streams.append(b.call(shared, b.input((3, 4))))


@member("method", FAMILY, "shared-by-methods", excludes=frozenset({"second-method", "joint"}))
def draw_shared_by_methods(b: Builder) -> None:
    """Two methods that compute the same weight from the same parameter."""
    stored = b.tensor("parameter", (4, 4))
    b.streams.append(b.step("linear", b.input((2, 4)), b.step("t", stored)))
    b.finish_method()
    b.begin_method("decode")
    b.streams.append(b.step("linear", b.input((3, 4)), b.step("t", stored)))


@member(
    "method",
    FAMILY,
    "written-elsewhere",
    often=3,
    excludes=frozenset({"second-method", "shared-by-methods", "joint"}),
)
def draw_written_elsewhere(b: Builder) -> None:
    """A buffer that is part of a weight in one method and is written in another."""
    state = b.tensor("buffer", (4, 4))
    b.streams.append(b.step("linear", b.input((2, 4)), b.step("mul", state, b.tensor("parameter", ()))))
    b.finish_method()
    b.begin_method("update")
    data = b.input((4, 4))
    b.write("add_", state, data)
    b.streams.append(b.step("relu", data))
