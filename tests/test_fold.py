"""What the fold folds, what it leaves, and what it leaves as it was, on exported programs."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, ExportedProgram, export
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
    """Check that there is nothing to fold: the caller's program comes back."""
    program = program_of(model, *inputs)
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


@pytest.mark.parametrize("case", FOLDED)
def test_computed_weight_is_folded(case):
    body, parameters, shape = FOLDED[case]
    folded = check(Net(body, **parameters), w(*shape))
    assert len(ops(folded)) == 1
    assert all(name.endswith("_folded") for name in names(folded))


@pytest.mark.parametrize(
    "parametrize",
    [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal],
)
def test_parametrized_weight_is_folded_once(parametrize):
    folded = check(parametrize(nn.Linear(4, 4)), w(2, 4))
    assert ops(folded) == ["aten.linear.default"]
    assert len(names(folded)) == 2, "the weight and the bias, no step of the weight"


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
    check_left(nn.Linear(4, 4), w(2, 4))
    check_left(Net(lambda s, x: F.relu(s.w * 2) + x, w=w(4)), w(2, 4))


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
        y = F.linear(x, s.cache * 2)
        if not early:
            write(s.cache, x)
        return y

    check_left(Net(body, {"cache": w(4, 4)}), w(2, 4))


def test_buffer_that_no_call_writes_is_a_constant():
    model = Net(lambda s, x: F.linear(x, s.w * 2), {"w": w(3, 4)})
    model.register_buffer("w", model.w, persistent=False)
    folded = check(model, w(2, 4))
    assert names(folded) == set(folded.constants) == {"w_folded"}


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

    # A fold could choose any one of them: each has to be left.
    program = program_of(Net(body, w=w(3, 4)), w(2, 4))
    fold = WeightFold(program)
    fold.analyse()
    assert fold.select() == []
    assert fold_weights(program) is program


def test_quantization_is_not_evaluated():
    q = torch.ops.quantized_decomposed

    def body(s, x):
        scale, zero, low, high = 0.1, 0, -128, 127
        weight = q.quantize_per_tensor(s.w * 2, scale, zero, low, high, torch.int8)
        return F.linear(x, q.dequantize_per_tensor(weight, scale, zero, low, high, torch.int8) * 2)

    check_left(Net(body, w=w(3, 4)), w(2, 4))


def test_number_read_from_a_tensor_is_no_constant():
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        check_left(Net(lambda s, x: F.linear(x, s.w * s.scale.item()), w=w(3, 4), scale=w(1)), w(2, 4))


def test_joint_graph_is_returned_as_it_is():
    body = lambda s, x, y: F.mse_loss(F.linear(x, s.w * 2), y)  # noqa: E731
    joint = _export_forward_backward(program_of(Net(body, w=w(3, 4)), w(2, 4), w(2, 3)))
    assert joint.graph_signature.backward_signature is not None
    assert fold_weights(joint) is joint


# The program does not grow.


def test_expression_that_is_used_twice_is_stored_once():
    layer = parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(layer, nn.ReLU(), layer)
    folded = check(model, w(2, 4))
    assert Counter(ops(folded))["aten.linear.default"] == 2 and len(ops(folded)) == 3
    assert len({node.args[1] for node in folded.graph.nodes if node.name.startswith("linear")}) == 1


@pytest.mark.parametrize("a, b", [(1, 1.0), (0.0, -0.0), (True, 1)])
def test_expressions_that_differ_in_a_number_are_not_the_same(a, b):
    def body(s, x):
        return F.linear(x, s.w * a + s.v) - F.linear(x, s.w * b + s.v)

    program = program_of(Net(body, w=w(3, 4), v=w(3, 4)), w(2, 4))
    fold = WeightFold(program)
    fold.analyse()
    products = [n for n in fold.constants if str(n.target) == "aten.mul.Tensor"]
    assert len(products) == len({fold.constants[n] for n in products}) == 2


GROWS = {
    "used elsewhere": lambda s, x: F.linear(x, s.w.t()) + s.w.sum(),
    "tied embedding": lambda s, x: F.linear(F.embedding(x.long().abs() % 4, s.w), s.w * 2),
    "two values of one": lambda s, x: F.linear(x, s.w.t()) + F.linear(x, s.w * 2),
    "expanded": lambda s, x: F.linear(x, s.w[:2].repeat(2, 1)) + F.linear(x, s.w[2:]).sum(),
    "also an output": lambda s, x: (F.linear(x, s.w * 2), s.w * 2),
    "also an activation": lambda s, x: F.linear(s.w * 2, s.w * 2) + F.linear(x, s.w * 2),
}


@pytest.mark.parametrize("case", GROWS)
def test_fold_that_frees_too_little_is_not_made(case):
    model = Net(GROWS[case], w=w(4, 4))
    program = program_of(model, w(2, 4) if case != "also an activation" else w(4, 4))
    folded = fold_weights(program)
    assert folded is program or nbytes(folded) <= nbytes(program)
    assert case == "also an activation" or folded is program


def nbytes(program: ExportedProgram) -> int:
    stored = {**program.state_dict, **program.constants}
    return sum(stored[name].nbytes for name in names(program))


def test_tied_parameter_is_freed_only_with_its_last_name():
    a, b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    b.weight = a.weight
    check_left(Net(lambda s, x: F.linear(x, a.weight.t()) + b(x)).append(a, b), w(2, 4))
    both = Net(lambda s, x: x @ a.weight.t() + x @ b.weight.t()).append(a, b)
    folded = check(both, w(2, 4))
    assert Counter(ops(folded)) == {"aten.matmul.default": 2, "aten.add.Tensor": 1}
    assert sum(bool(node.users) for node in folded.graph.find_nodes(op="placeholder")) == 2


def test_what_pays_alone_is_folded_beside_what_does_not():
    def body(s, x):
        return F.linear(x, s.w * s.g) + F.linear(x, s.v * s.g) + F.linear(x, s.v.t())

    folded = check(Net(body, w=w(4, 4), v=w(4, 4), g=w(4, 1)), w(2, 4))
    assert names(folded) == {"w_folded", "v", "g"}


# How a folded value is registered.


def test_folded_value_is_a_contiguous_leaf_of_its_own():
    def body(s, x):
        return F.linear(x, s.w[4:].t()) + F.linear(x, s.v.expand(4, 4))

    program = program_of(Net(body, w=w(8, 4), v=w(4, 4)), w(2, 4))
    folded = fold_weights(program)
    assert set(folded.state_dict) == {"w_folded", "v_folded"}
    for value in folded.state_dict.values():
        assert isinstance(value, nn.Parameter) and value.is_leaf and value.is_contiguous()
        assert value.untyped_storage().nbytes() == value.nbytes
        assert all(value.data_ptr() != source.data_ptr() for source in program.state_dict.values())
    copy.deepcopy(folded.state_dict)


def test_folded_value_takes_name_kind_and_tag_of_the_weight_among_its_sources():
    model = Net(lambda s, x: F.linear(x, s.mask * s.w * s.g), {"mask": w(3, 4)}, w=w(3, 4), g=w(3, 1))
    model.register_parameter("w_folded", nn.Parameter(w(2)))
    program = program_of(model, w(2, 4))
    for node in program.graph.find_nodes(op="placeholder"):
        node.meta["custom"] = {"delegate_constant_tag": f"file of {node.name}"}
    folded = fold_weights(program)
    (spec,) = [s for s in folded.graph_signature.input_specs if s.target == "w_folded_1"]
    assert spec.kind is InputKind.PARAMETER
    (node,) = [n for n in folded.graph.nodes if n.name == spec.arg.name]
    assert node.meta["custom"] == {"delegate_constant_tag": "file of p_w"}
    assert node.meta["val"].shape == (3, 4)
    assert "w_folded" in names(folded), "a parameter that nothing used stays"


# What stays as it was.


def test_program_of_the_caller_is_untouched():
    def body(s, x):
        s.count.add_(1)
        c = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        return F.linear(F.linear(x, s.w * 2), c * 1) + s.count

    program = program_of(Net(body, {"count": torch.zeros(())}, w=w(2, 2)), w(2, 2))
    state = {**program.state_dict, **program.constants}
    before = str(program), {name: (id(t), t.clone()) for name, t in state.items()}
    folded = fold_weights(program)
    assert names(folded) == {"w_folded", "lifted_tensor_0_folded", "count"}
    assert str(program) == before[0]
    state = {**program.state_dict, **program.constants}
    assert state.keys() == before[1].keys()
    for name, tensor in state.items():
        assert id(tensor) == before[1][name][0] and torch.equal(tensor, before[1][name][1])


def test_state_and_signature_of_the_user_are_the_same():
    def body(s, x, y):
        s.cache[:1].copy_(x[:1])
        y.add_(1)
        return {"a": F.linear(x, s.w * 2), "b": s.cache.sum() + y.sum()}

    program = program_of(Net(body, {"cache": w(2, 4)}, w=w(3, 4)), w(2, 4), w(2))
    folded, functional = fold_weights(program), program.run_decompositions({})
    assert folded.graph_signature.output_specs == functional.graph_signature.output_specs
    assert folded.graph_signature.user_inputs == functional.graph_signature.user_inputs
    assert folded.graph_signature.buffers_to_mutate
    assert folded.call_spec == program.call_spec


def test_captures_of_control_flow_stay():
    def body(s, x):
        v = s.w * 3
        y = torch.cond(x.sum() > 0, lambda x: x @ s.w, lambda x: x @ v, (x,))
        return F.linear(y, s.u * 2) + F.linear(y, s.w * 2)

    folded = check(Net(body, w=w(4, 4), u=w(4, 4)), w(2, 4))
    assert names(folded) == {"w", "u_folded"}


def test_module_call_whose_signature_is_preserved_keeps_its_nodes():
    inner = Net(lambda s, x, weight: F.linear(x, weight))
    outer = Net(lambda s, x: inner(x, s.w * 2), w=w(3, 4))
    outer.add_module("inner", inner)
    program = program_of(outer, w(2, 4), preserve_module_call_signature=("inner",))
    assert fold_weights(program) is program


def test_dynamic_dimension_stays_dynamic():
    model = Net(lambda s, x: F.linear(x, s.w * 2, s.b[:3]), w=w(3, 4), b=w(4))
    shapes = ({0: Dim("batch", min=1, max=8)},)
    folded = fold_weights(program_of(model, w(2, 4), dynamic_shapes=(shapes,)))
    assert ops(folded) == ["aten.linear.default"]
    for batch in (1, 5):
        x = w(batch, 4)
        torch.testing.assert_close(folded.module()(x), model(x))


def test_weight_of_dynamic_shape_is_no_constant():
    model = Net(lambda s, x: F.linear(x, s.w[: x.shape[1]].t()), w=w(8, 3))
    shapes = (({1: Dim("width", min=2, max=8)},),)
    program = program_of(model, w(2, 4), dynamic_shapes=shapes)
    assert fold_weights(program) is program


def test_weight_that_cannot_be_evaluated_stays_with_a_warning():
    @torch.library.custom_op("fold_tests::broken", mutates_args=())
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel")

    broken.register_fake(torch.empty_like)

    def body(s, x):
        y = F.linear(x, broken(s.w)[:2]) + F.linear(x, s.w[:2])
        return y.sum() + F.linear(x, s.v * 2)

    program = program_of(Net(body, w=w(4, 4), v=w(4, 4)), w(2, 4))
    with pytest.warns(UserWarning, match=r"linear \(from w\).*no kernel") as warned:
        folded = fold_weights(program)
    assert names(folded) == {"w", "v_folded"}
    assert sum(each.category is UserWarning for each in warned) == 1


def test_good_program_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fold_weights(program_of(Net(FOLDED["lora"][0], **FOLDED["lora"][1]), w(2, 4)))
