"""Facts and twins: the ground truth, on programs small enough to be judged by eye."""

from __future__ import annotations

import pytest
import torch

from fuzz.campaign import drawn
from generators.facts import INPUT, QUANTIZED, STATE, Verdict, facts_of
from generators.program import Call, Input, Layer, Method, Parametrization, Program, Step, Tensor
from generators.strategies import programs
from generators.twin import twin_of
from generators.validate import validate
from oracles.original import ProgramOriginal


def program(*steps: Step, tensors=(), layers=(), outputs=("y",), calls=2) -> Program:
    method = Method("forward", (Input("x", (2, 4)),), steps, outputs)
    made = Program((method,), tuple(Call("forward", i) for i in range(calls)), tensors, layers)
    validate(made)
    return made


W = Tensor("w", "parameter", (4, 4))
B = Tensor("b", "buffer", (4, 4))
LINEAR = Step("linear", ("x", "v"), ("y",))


def verdict(made: Program) -> list[tuple[str, Verdict]]:
    return [(weight.name, weight.verdict) for weight in facts_of(made).weights]


@pytest.mark.parametrize(
    ("steps", "tensors", "expected"),
    [
        ((Step("t", ("w",), ("v",)), LINEAR), (W,), Verdict.FOLD),
        ((Step("mul", ("w", "b"), ("v",)), LINEAR), (W, B), Verdict.FOLD),
        ((Step("randn", (), ("r",), {"shape": (4, 4)}), Step("mul", ("w", "r"), ("v",)), LINEAR),
         (W,), Verdict.KEEP),
        ((Step("mul", ("w", "b"), ("v",)), LINEAR, Step("mul_", ("b", "w"))), (W, B), Verdict.KEEP),
        ((Step("mm", ("x", "w"), ("a",)), Step("mm", ("w", "w"), ("v",)), LINEAR), (W,), Verdict.EITHER),
        ((Step("full", (), ("v",), {"shape": (4, 4), "value": 2.0}), LINEAR), (), Verdict.KEEP),
        ((Step("ones_like", ("w",), ("v",)), LINEAR), (W,), Verdict.KEEP),
        ((Step("ones_like", ("w",), ("o",)), Step("mul", ("w", "o"), ("v",)), LINEAR),
         (W,), Verdict.FOLD),
        ((Step("mul", ("w", "w"), ("v",)), Step("add_", ("v", "w")), LINEAR), (W,), Verdict.FOLD),
    ],
)  # fmt: skip
def test_verdict_on_the_weight_of_a_linear(steps, tensors, expected):
    outputs = ("y", "a") if any(step.outs == ("a",) for step in steps) else ("y",)
    weights = verdict(program(*steps, tensors=tensors, outputs=outputs))
    assert weights[-1] == ("v", expected)


def test_plain_parameters_and_inputs_are_no_computed_weights():
    made = program(Step("linear", ("x", "w"), ("y",)), tensors=(W,))
    assert verdict(made) == []


def test_quantized_weight_is_kept():
    attrs = {"scale": 0.1, "zero_point": 0}
    steps = (Step("quantize", ("w",), ("q",), attrs), Step("dequantize", ("q",), ("v",), attrs), LINEAR)
    made = facts_of(program(*steps, tensors=(W,)))
    assert made.weights[0].verdict is Verdict.KEEP and QUANTIZED in made.weights[0].value.labels
    assert made.quantized


def test_packed_weight_folds_whole_and_not_in_part():
    packed = Tensor("w", "parameter", (12, 4))
    chunk = Step("chunk", ("w",), ("q", "k", "v"), {"chunks": 3, "dim": 0})
    linears = [Step("linear", ("x", part), (f"y_{part}",)) for part in "qkv"]
    whole = program(chunk, *linears, tensors=(packed,), outputs=("y_q", "y_k", "y_v"))
    assert {item for _, item in verdict(whole)} == {Verdict.FOLD}
    # Here the packed weight is an output as well: it cannot go, and folding only adds copies.
    kept = program(chunk, *linears, tensors=(packed,), outputs=("y_q", "y_k", "y_v", "w"))
    assert {item for _, item in verdict(kept)} == {Verdict.EITHER}


def test_parametrized_layer_called_twice_is_one_weight_that_folds():
    layer = Layer(
        "linear", "Linear", {"in_features": 4, "out_features": 4, "bias": True},
        (Parametrization("weight_norm"), Parametrization("scale", "bias")),
    )  # fmt: skip
    steps = (
        Step("call", ("x",), ("v",), {"layer": "linear"}),
        Step("call", ("v",), ("y",), {"layer": "linear"}),
    )
    facts = facts_of(program(*steps, layers=(layer,)))
    assert [w.name for w in facts.must_fold()] == ["linear.weight", "linear.bias"] * 2


def test_state_written_by_one_method_is_state_in_another():
    read = Method("read", (Input("x", (2, 4)),), (Step("t", ("b",), ("v",)), LINEAR), ("y",))
    write = Method("write", (Input("z", (4, 4)),), (Step("copy_", ("b", "z")),), ("z",))
    made = Program((read, write), (Call("write"), Call("read")), (B,))
    facts = facts_of(made)
    assert facts.weights[0].verdict is Verdict.KEEP
    assert facts.written == {"read": frozenset(), "write": frozenset({"b"})}
    assert {STATE, INPUT} <= facts.outputs["read"][0].labels


def test_a_write_through_a_view_reaches_the_buffer():
    steps = (
        Step("narrow", ("b",), ("part",), {"dim": 0, "start": 1, "length": 2}),
        Step("copy_", ("part", "x")),
        Step("mul", ("b", "b"), ("y",)),
    )
    facts = facts_of(program(*steps, tensors=(B,)))
    assert facts.written["forward"] == {"b"}
    assert {INPUT, STATE} <= facts.outputs["forward"][0].labels


def test_what_a_branch_captures_counts():
    z = Input("z", (2, 4))
    plain = Method("plain", (z,), (Step("relu", ("z",), ("p",)),), ("p",))
    stored = Method("stored", (z,), (Step("mm", ("z", "b"), ("s",)),), ("s",))
    steps = (
        Step("positive", ("x",), ("c",)),
        Step("cond", ("c", "x"), ("y",), {"then": "plain", "other": "stored"}),
        Step("mul_", ("b", "w")),
    )
    method = Method("forward", (Input("x", (2, 4)),), steps, ("y",))
    made = Program((method,), (Call("forward"),), (W, B), branches=(plain, stored))
    (value,) = facts_of(made).outputs["forward"]
    assert {INPUT, STATE} == value.labels and "b" in value.sources


def test_the_twin_of_a_float16_weight_is_float16():
    stored = Tensor("w", "parameter", (4, 4), dtype="float16")
    made = program(Step("t", ("w",), ("v",)), Step("half_linear", ("x", "v"), ("y",)), tensors=(stored,))
    twin = twin_of(made, facts_of(made).must_fold()).program
    validate(twin)
    assert [tensor.dtype for tensor in twin.tensors] == ["float16"]


def test_twin_computes_what_the_original_computes():
    families = ("tensors", "parametrizations", "expressions", "mutations", "factories")
    compared = 0
    for made in drawn(programs(families), 40, 5, "twin"):
        original = ProgramOriginal(made, lambda stage: None)
        weights = original.facts.must_fold()
        if not weights:
            continue
        assert not facts_of(twin_of(made, weights).program).must_fold()
        twin = original.twin(weights)["forward"].module()
        with torch.no_grad():
            for (_, (inputs, _)), wanted in zip(original.calls, original.eager, strict=True):
                results = twin(*inputs)
                results = results if isinstance(results, (tuple, list)) else (results,)
                for got, expected in zip(results, wanted, strict=True):
                    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        compared += 1
    assert compared >= 10
