"""What the fold folds, what it leaves, and what it leaves as it was, on exported programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import ExportedProgram, export
from torch.export.experimental import _export_forward_backward
from torch.export.graph_signature import InputKind
from torch.nn.utils import parametrizations

from fold import WeightFold, fold_weights


class Net(nn.Module):
    """A module of given parameters and buffers whose forward is ``body(self, *inputs)``."""

    def __init__(self, body: Callable, buffers: dict | None = None, **parameters: torch.Tensor):
        super().__init__()
        self.body = body
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))
        for name, value in (buffers or {}).items():
            self.register_buffer(name, value)

    def forward(self, *inputs: torch.Tensor):
        return self.body(self, *inputs)

    def append(self, *modules: nn.Module) -> Net:
        for index, module in enumerate(modules):
            self.add_module(str(index), module)
        return self


class Side(nn.Module):
    """Modules side by side, one input and one output each: to lower many costs no more than one."""

    def __init__(self, modules: list[nn.Module]):
        super().__init__()
        self.modules_ = nn.ModuleList(modules)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(module(x) for module, x in zip(self.modules_, inputs, strict=True))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def w(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def program_of(model: nn.Module, *inputs: torch.Tensor, **options) -> ExportedProgram:
    return export(model.eval(), inputs, **options)


def ops(program: ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def names(program: ExportedProgram) -> set[str]:
    return {spec.target for spec in program.graph_signature.input_specs if spec.target}


def check(model: nn.Module, *inputs: torch.Tensor) -> ExportedProgram:
    """Fold, check what holds of every fold, and return the folded program."""
    program = program_of(model, *inputs)
    folded = fold_weights(program)
    folded.validate()
    placeholders = folded.graph.find_nodes(op="placeholder")
    specs = folded.graph_signature.input_specs
    assert [node.name for node in placeholders] == [spec.arg.name for spec in specs]
    kinds = [spec.kind is InputKind.USER_INPUT for spec in specs]
    assert kinds == sorted(kinds), "lifted inputs stand before user inputs"
    torch.testing.assert_close(folded.module()(*inputs), model(*inputs))
    assert fold_weights(folded) is folded or ops(folded) == ops(fold_weights(folded))
    return folded


def check_left(model: nn.Module, *inputs: torch.Tensor) -> None:
    """Check that no value is even a candidate, and that the caller's program comes back."""
    program = program_of(model, *inputs)
    fold = WeightFold(program)
    fold.analyse()
    assert fold.select() == []
    assert fold_weights(program) is program


# What is folded.

FOLDED = {
    "linear": (lambda s, x: F.linear(x, s.w * 2, s.b * 2), {"w": w(3, 4), "b": w(3)}, (2, 4)),
    "conv1d": (lambda s, x: F.conv1d(x, s.w * 2, s.b * 2), {"w": w(3, 4, 2), "b": w(3)}, (1, 4, 6)),
    "conv1d same": (lambda s, x: F.conv1d(x, s.w * 2, padding="same"), {"w": w(3, 4, 3)}, (4, 6)),
    "conv2d": (lambda s, x: F.conv2d(x, s.w * 2), {"w": w(3, 4, 2, 2)}, (1, 4, 6, 6)),
    "conv3d": (lambda s, x: F.conv3d(x, s.w * 2), {"w": w(3, 4, 2, 2, 2)}, (1, 4, 5, 5, 5)),
    "transposed1d": (lambda s, x: F.conv_transpose1d(x, s.w * 2), {"w": w(4, 3, 2)}, (1, 4, 6)),
    "transposed2d": (lambda s, x: F.conv_transpose2d(x, s.w * 2), {"w": w(4, 3, 2, 2)}, (4, 6, 6)),
    "addmm": (lambda s, x: torch.addmm(s.b * 2, x, s.w * 2), {"w": w(4, 3), "b": w(3)}, (2, 4)),
    "mm": (lambda s, x: torch.mm(x, s.w * 2), {"w": w(4, 3)}, (2, 4)),
    "matmul": (lambda s, x: x @ (s.w * 2), {"w": w(4, 3)}, (2, 2, 4)),
    "by keyword": (lambda s, x: F.linear(input=x, weight=s.w * 2), {"w": w(3, 4)}, (2, 4)),
    "lora": (
        lambda s, x: F.linear(x, s.w + s.b @ s.a),
        {"w": w(6, 4), "b": w(6, 1), "a": w(1, 4)},
        (2, 4),
    ),
    "transpose": (lambda s, x: F.linear(x, s.w.t()), {"w": w(4, 3)}, (2, 4)),
    "slice": (lambda s, x: F.linear(x, s.w[1:]), {"w": w(3, 4)}, (2, 4)),
    "one of unbind": (lambda s, x: F.linear(x, s.w.unbind(0)[1]), {"w": w(2, 3, 4)}, (2, 4)),
    "round trip": (lambda s, x: F.linear(x, s.w.double().float()), {"w": w(3, 4)}, (2, 4)),
    "cat": (lambda s, x: F.linear(x, torch.cat([s.a, s.b])), {"a": w(3, 2), "b": w(3, 2)}, (2, 2)),
    "dropout in eval": (lambda s, x: F.linear(x, F.dropout(s.w, 0.5, False)), {"w": w(3, 4)}, (4,)),
    "inline": (lambda s, x: F.linear(x, torch.tensor([[1.0, 2.0], [3.0, 4.0]])), {}, (1, 2)),
    "tril mask": (lambda s, x: F.linear(x, s.w * torch.ones(3, 4).tril()), {"w": w(3, 4)}, (2, 4)),
    "range mask": (lambda s, x: F.linear(x, s.w * (torch.arange(4) > 1)), {"w": w(3, 4)}, (2, 4)),
    "ones_like": (lambda s, x: F.linear(x, s.w * torch.ones_like(s.w)), {"w": w(3, 4)}, (2, 4)),
    "written piecewise": (lambda s, x: F.linear(x, piecewise(s.w)), {"w": w(3, 4)}, (2, 4)),
    "in no_grad": (lambda s, x: in_no_grad(s.w, x), {"w": w(3, 4)}, (2, 4)),
}


def piecewise(weight: torch.Tensor) -> torch.Tensor:
    result = torch.empty(3, 4)
    result[:1] = weight[:1] * 2
    result[1:] = weight[1:]
    return result.add_(1)


@torch.no_grad()
def in_no_grad(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight * 2)


def test_computed_weights_are_folded():
    model = Side([Net(body, **parameters) for body, parameters, _ in FOLDED.values()])
    folded = check(model, *(w(*shape) for _, _, shape in FOLDED.values()))
    assert len(ops(folded)) == len(FOLDED), ops(folded)
    assert all(name.endswith("_folded") for name in names(folded)), names(folded)


@pytest.mark.parametrize(
    "parametrize",
    [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal],
)
def test_parametrized_weight_is_folded_once(parametrize):
    folded = check(parametrize(nn.Linear(4, 4)), w(2, 4))
    assert ops(folded) == ["aten.linear.default"]
    assert len(names(folded)) == 2, "the weight and the bias, no step of the weight"


def test_a_gemm_that_no_input_reaches_is_served_as_well():
    """One whose result is returned; one that is itself a step of a computed weight goes with that."""
    folded = check(Net(lambda s: F.linear(s.b, s.w.t()), w=w(4, 3), b=w(2, 4)))
    assert ops(folded) == ["aten.linear.default"]
    folded = check(
        Net(lambda s, x: F.linear(x, s.a + s.w.t() @ s.b), a=w(3, 4), w=w(2, 3), b=w(2, 4)), w(2, 4)
    )
    assert ops(folded) == ["aten.linear.default"]


def test_all_or_some_chunks_of_a_packed_weight_are_folded():
    def all_of(s, x):
        (q, k, v), (a, b, c) = s.w.chunk(3), s.b.split(4)
        return F.linear(x, q, a) + F.linear(x, k, b) + F.linear(x, v, c)

    folded = check(Net(all_of, w=w(12, 4), b=w(12)), w(2, 4))
    assert len(names(folded)) == 6
    some = check(Net(lambda s, x: F.linear(x, s.w.chunk(3)[2]), w=w(12, 4)), w(2, 4))
    assert ops(some) == ["aten.linear.default"]


def test_long_chain_and_wide_dag_are_folded():
    def chain(s, x):
        weight = s.w
        for _ in range(300):
            weight = weight * 1.001
        for _ in range(40):
            weight = (weight + weight) * 0.5
        return F.linear(x, weight)

    assert ops(check(Net(chain, w=w(3, 4)), w(2, 4))) == ["aten.linear.default"]


def test_intermediate_values_are_dropped_after_their_last_use(monkeypatch):
    live = []

    def value(self, node, values):
        live.append(len(values))
        return WeightFold.value(self, node, values)

    def chain(s, x):
        weight = s.w
        for _ in range(50):
            weight = weight * 1.01
        return F.linear(x, weight)

    watched = type("Watched", (WeightFold,), {"value": value})
    watched(program_of(Net(chain, w=w(3, 4)), w(2, 4))).fold()
    assert len(live) == 51 and max(live) == 1


# What is left.


def test_first_operand_is_no_weight():
    check_left(Net(lambda s, x: (s.w * 2) @ x, w=w(4, 4)), w(4, 2))
    check_left(Net(lambda s, x: torch.mm(s.w * 2, x), w=w(4, 4)), w(4, 2))
    check_left(Net(lambda s, x: torch.bmm(x, s.w * 2), w=w(2, 4, 4)), w(2, 3, 4))


def test_op_that_xnnpack_would_get_wrong_stays_outside():
    weights = {"w": w(4, 4), "b": w(4)}
    check_left(Net(lambda s, x: torch.addmm(s.b, x, s.w * 2, beta=2), **weights), w(2, 4))
    check_left(Net(lambda s, x: torch.addmm(s.b, x, s.w * 2, alpha=2), **weights), w(2, 4))
    check_left(Net(lambda s, x: torch.addmm(s.b[:, None], x, s.w * 2), **weights), w(4, 4))
    check_left(Net(lambda s, x: F.linear(x, s.w * 2, s.b[:1] * 2), **weights), w(2, 4))
    check_left(Net(lambda s, x: F.linear(x, s.b * 2), **weights), w(2, 4))


def test_without_a_candidate_nothing_is_retraced(monkeypatch):
    monkeypatch.setattr(ExportedProgram, "run_decompositions", None)
    for model in (nn.Linear(4, 4), Net(lambda s, x: F.relu(s.w * 2) + x, w=w(4))):
        program = program_of(model, w(2, 4))
        assert fold_weights(program) is program


@pytest.mark.parametrize(
    "write",
    [
        lambda cache, x: cache.add_(x.sum()),
        lambda cache, x: cache[1:2].copy_(x[:1]),
        lambda cache, x: cache.t()[0].mul_(2),
        lambda cache, x: cache.index_put_((torch.tensor([0]),), x[:1]),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_buffer_that_a_call_writes_is_no_constant(write, early):
    def body(s, x):
        if early:
            write(s.cache, x)
        y = F.linear(x, s.cache * s.w)
        if not early:
            write(s.cache, x)
        return y

    check_left(Net(body, {"cache": w(4, 4)}, w=w(4, 4)), w(2, 4))


def test_buffer_that_no_call_writes_is_a_constant():
    model = Net(lambda s, x: F.linear(x, s.w * 2), {"w": w(3, 4)})
    model.register_buffer("w", model.w, persistent=False)
    folded = check(model, w(2, 4))
    # What is not persistent may stand outside the state dict; what XNNPACK takes for a weight may not.
    assert names(folded) == set(folded.state_dict) == {"w_folded"} and not folded.constants


def test_input_is_no_constant():
    check_left(Net(lambda s, x, y: F.linear(x, y.mul_(2) * s.w), w=w(3, 4)), w(2, 4), w(3, 4))


FILLS = [
    lambda s: torch.ones(3, 4) * 2,
    lambda s: torch.full((3, 4), 2.0),
    lambda s: torch.zeros(3, 4) + 1,
    lambda s: torch.full_like(s.w, 2.0),
    lambda s: torch.zeros_like(s.w) + torch.ones_like(s.w),
    lambda s: s.w.new_full((3, 4), 2.0),
    lambda s: s.w.new_ones(3, 4) + s.w.new_zeros(3, 4),
    lambda s: torch.empty(3, 4).fill_(2.0),
    lambda s: s.w.clone().zero_(),
    lambda s: torch.arange(12.0).view(3, 4),
]

DRAWS = [
    lambda s: torch.rand(3, 4),
    lambda s: torch.randn_like(s.w),
    lambda s: torch.bernoulli(s.w.sigmoid()),
    lambda s: F.dropout(s.w, 0.5, True),
    lambda s: torch.empty(3, 4).uniform_(),
    lambda s: s.w[torch.randperm(3)],
    lambda s: F.alpha_dropout(s.w, 0.5, True),
]


@pytest.mark.parametrize("values", [FILLS, DRAWS], ids=["fills", "draws"])
def test_fill_or_random_draw_is_not_stored(values):
    def body(s, x):
        return sum(F.linear(x, value(s)) for value in values)

    check_left(Net(body, w=w(3, 4)), w(2, 4))


def test_quantization_is_not_evaluated():
    q = torch.ops.quantized_decomposed

    def body(s, x):
        scale, zero, low, high = 0.1, 0, -128, 127
        weight = q.quantize_per_tensor(s.w * 2, scale, zero, low, high, torch.int8)
        return F.linear(x, q.dequantize_per_tensor(weight, scale, zero, low, high, torch.int8) * 2)

    check_left(Net(body, w=w(3, 4)), w(2, 4))


def test_number_read_from_a_tensor_is_a_constant_and_a_shape_made_of_it_is_none():
    folded = check(Net(lambda s, x: F.linear(x, s.w * s.scale.item()), w=w(3, 4), scale=w(1)), w(2, 4))
    assert ops(folded) == ["aten.linear.default"]

    def sliced(s, x):
        size = s.size.item()
        torch._check(size >= 2)
        torch._check(size <= 3)
        return F.linear(x, s.w[:size])

    check_left(Net(sliced, {"size": torch.tensor(2)}, w=w(3, 4)), w(2, 4))


def test_joint_graph_is_returned_as_it_is():
    body = lambda s, x, y: F.mse_loss(F.linear(x, s.w * 2), y)  # noqa: E731
    joint = _export_forward_backward(program_of(Net(body, w=w(3, 4)), w(2, 4), w(2, 3)))
    assert joint.graph_signature.backward_signature is not None
    assert fold_weights(joint) is joint
