"""What a fold does to a program: its size, the tensors it adds, and all that stays as it was."""

from __future__ import annotations

import copy
import warnings
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from test_fold import FOLDED, Net, check, names, ops, program_of, seeded, w  # noqa: F401
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.nn.utils import parametrizations

from fold import WeightFold, fold_weights

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
    one = program_of(Net(lambda s, x: F.linear(x, a.weight.t()) + b(x)).append(a, b), w(2, 4))
    assert fold_weights(one) is one
    both = Net(lambda s, x: x @ a.weight.t() + x @ b.weight.t()).append(a, b)
    folded = check(both, w(2, 4))
    assert Counter(ops(folded)) == {"aten.matmul.default": 2, "aten.add.Tensor": 1}
    assert sum(bool(node.users) for node in folded.graph.find_nodes(op="placeholder")) == 2


def test_tied_buffer_is_kept_by_a_name_without_users():
    # Lowering removes parameters that nothing uses, but not buffers.
    tied = w(4, 4)
    model = Net(lambda s, x: F.linear(x, s.u.t()) + F.linear(x, s.v.t()), {"u": tied, "v": tied})
    program = program_of(model, w(2, 4))
    assert fold_weights(program) is program


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
    model = Net(lambda s, x: F.linear(x, s.mask * s.w * s.g), {"mask": w(3, 4)}, g=w(3, 1), w=w(3, 4))
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
