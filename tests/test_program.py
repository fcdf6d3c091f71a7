"""Programs: JSON, validation, source."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from fuzz.campaign import drawn
from generators.members import MEMBERS
from generators.program import (
    Call,
    Dim,
    Input,
    Layer,
    Method,
    Parametrization,
    Program,
    ProgramError,
    Step,
    Tensor,
    decode,
    encode,
)
from generators.prune import prune
from generators.render import render
from generators.strategies import FAMILIES, draws, members_of, programs
from generators.validate import validate

LINEAR = Program(
    methods=(
        Method(
            "forward",
            (Input("x", (2, 4)),),
            (Step("t", ("w",), ("v",)), Step("linear", ("x", "v"), ("y",))),
            ("y",),
        ),
    ),
    calls=(Call("forward"),),
    tensors=(Tensor("w", "parameter", (4, 8)),),
)


def change(program, **fields: object):
    return msgspec.structs.replace(program, **fields)


def with_steps(*steps: Step, outputs: tuple[str, ...] = ("y",)) -> Program:
    method = msgspec.structs.replace(LINEAR.methods[0], steps=steps, outputs=outputs)
    return change(LINEAR, methods=(method,))


def test_json_round_trip_keeps_program_hash_and_digest():
    again = decode(encode(LINEAR))
    assert again == LINEAR
    assert hash(again) == hash(LINEAR)
    assert again.digest == LINEAR.digest
    assert change(LINEAR, calls=(Call("forward", 1),)).digest != LINEAR.digest


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_at_least_four_members(family):
    assert len(members_of([family])) >= 4
    assert all(member.sentence.endswith(".") for member in MEMBERS.values())


def test_drawn_programs_are_valid_distinct_and_the_same_for_a_seed():
    first = drawn(programs(), 120, 7, "a")
    for program in first:
        validate(program)
        assert decode(encode(program)) == program
        compile(render(program), "program", "exec")
    assert len(set(first)) == 120
    assert drawn(programs(), 120, 7, "a") == first
    assert drawn(programs(), 120, 8, "a") != first
    assert drawn(programs(), 120, 7, "b") != first


def test_one_program_mixes_families():
    mixed = [
        {MEMBERS[name].family for name in item.members}
        for item in drawn(draws(tuple(MEMBERS)), 400, 1, "mix")
    ]
    together = {pair for families in mixed for pair in itertools.combinations(sorted(families), 2)}
    assert together == set(itertools.combinations(sorted(FAMILIES), 2))
    assert max(len(families) for families in mixed) >= 7


def test_validate_gives_types():
    types = validate(LINEAR)["forward"]
    assert types["v"].shape == (8, 4)
    assert types["y"].shape == (2, 8)


BRANCH = Method("branch", (Input("z", (2, 4)),), (Step("relu", ("z",), ("u",)),), ("u",))
LOOP = Step("cond", ("u", "z"), ("k",), {"then": "branch", "other": "branch"})
BATCH = Dim("batch", 1, 8)
DYNAMIC = change(
    LINEAR,
    dims=(BATCH,),
    methods=(msgspec.structs.replace(LINEAR.methods[0], inputs=(Input("x", (2, 4), dims=("batch", "")),)),),
    calls=(Call("forward", 0, {"batch": 5}),),
)


def test_a_dynamic_program_is_checked_at_all_sizes():
    assert validate(DYNAMIC)["forward"]["y"].shape == (2, 8)
    baked = change(DYNAMIC.methods[0], steps=(Step("reshape", ("x",), ("y",), {"shape": (8,)}),))
    with pytest.raises(ProgramError, match="expected 4 elements"):
        validate(change(DYNAMIC, methods=(baked,)))


SMUGGLED = "x); import os; os.system('touch smuggled'"


@pytest.mark.parametrize(
    ("program", "path"),
    [
        (change(LINEAR, version=99), "$.version: expected 1"),
        (change(LINEAR, quantization="int3"), "$.quantization: expected one of"),
        (change(LINEAR, calls=()), "$.calls: expected from 1 to"),
        (change(LINEAR, calls=(Call("other"),)), "$.calls[0].method: expected one of forward"),
        (change(LINEAR, calls=(Call("forward", -1),)), "$.calls[0].seed"),
        (change(LINEAR, tensors=(Tensor(SMUGGLED, "parameter", (4, 8)),)), "$.tensors[0].name"),
        (change(LINEAR, tensors=(Tensor("class", "parameter", (4, 8)),)), "$.tensors[0].name"),
        (change(LINEAR, tensors=(Tensor("torch", "parameter", (4, 8)),)), "$.tensors[0].name"),
        (change(LINEAR, tensors=(Tensor("w", "parameter", (10**9, 8)),)), "$.tensors[0].shape"),
        (change(LINEAR, tensors=(Tensor("w", "constant", (4, 8)),)), "$.tensors[0].shape"),
        (change(LINEAR, layers=(Layer("conv", "Conv9d"),)), "$.layers[0].kind"),
        (with_steps(Step("eval", ("x",), ("y",))), "$.methods[0].steps[0].op"),
        (with_steps(Step("relu", ("nothing",), ("y",))), "$.methods[0].steps[0].args[0]"),
        (with_steps(Step("relu", ("x",), (SMUGGLED,))), "$.methods[0].steps[0].outs[0]"),
        (with_steps(Step("relu", ("x", "x"), ("y",))), "$.methods[0].steps[0].args"),
        (with_steps(Step("relu", ("x",), ("y", "z"))), "$.methods[0].steps[0].outs"),
        (with_steps(Step("relu", ("x",), ("x",))), "$.methods[0].steps[0].outs[0]"),
        (with_steps(Step("relu", ("x",), ("y",)), outputs=()), "$.methods[0].outputs"),
        (with_steps(Step("mean", ("x",), ("y",), {"dim": SMUGGLED})), "steps[0].attrs.dim"),
        (with_steps(Step("mean", ("x",), ("y",), {})), "steps[0].attrs: expected exactly ['dim']"),
        (with_steps(Step("full", (), ("y",), {"shape": (2,), "value": 1e999})), "attrs.value"),
        (with_steps(Step("linear", ("x", "x", "x"), ("y",))), "steps[0]: linear: expected"),
        (with_steps(Step("zero_out", ("x",), ("y",))), "$.methods[0].steps[0].op"),
        (with_steps(Step("add_", ("w", "w")), outputs=("x",)), "steps[0].args[0]: expected a buffer"),
        (with_steps(Step("call", ("x",), ("y",), {"layer": "conv"})), "expected the name of a layer"),
        (
            change(LINEAR, branches=(change(BRANCH, steps=(*BRANCH.steps, LOOP)),)),
            "$.branches[0].steps[1]: cond: expected",
        ),
        (
            change(LINEAR, branches=(change(BRANCH, steps=(Step("add_", ("z", "z")),), outputs=("z",)),)),
            "$.branches[0].steps[0].op: expected an op without effects",
        ),
        (change(LINEAR, tensors=(Tensor("w", "parameter", (4, 8), tied="v"),)), "$.tensors[0].tied"),
        (change(LINEAR, tensors=(Tensor("w", "parameter", (4, 8), dtype="int64"),)), "$.tensors[0].dtype"),
        (
            change(LINEAR, tensors=(Tensor("w", "parameter", (4, 8), layout="channels_last"),)),
            "$.tensors[0].layout",
        ),
        (change(LINEAR, tensors=(Tensor("w", "parameter", (4, 8), tag=SMUGGLED),)), "$.tensors[0].tag"),
        (
            change(
                LINEAR,
                tensors=(Tensor("w", "parameter", (4, 8), tag="a"), Tensor("u", "buffer", (2,), tag="b")),
            ),
            "$.tensors[0].tag: expected one tag",
        ),
        (change(LINEAR, dims=(Dim(SMUGGLED, 1, 8),)), "$.dims[0].name"),
        (change(LINEAR, dims=(Dim("batch", 8, 1),)), "$.dims[0]"),
        (change(LINEAR, dims=(BATCH,), calls=(Call("forward", 0, {"batch": 4}),)), "$.calls[0].sizes"),
        (change(DYNAMIC, calls=(Call("forward", 0, {"batch": 9}),)), "$.calls[0].sizes"),
        (change(LINEAR, joint=True), "$.methods[0].outputs[0]: expected a loss"),
    ],
)
def test_validate_says_what_is_wrong_where(program, path):
    with pytest.raises(ProgramError) as caught:
        validate(program)
    assert path in str(caught.value)
    assert "expected" in str(caught.value) and "\n" not in str(caught.value)


def test_a_write_to_memory_that_reshape_may_alias_is_refused():
    steps = (
        Step("mul", ("x", "x"), ("m",)),
        Step("reshape", ("m",), ("y",), {"shape": (8,)}),
        Step("add_", ("m", "x")),
    )
    with pytest.raises(ProgramError, match=r"steps\[2\].args\[0\]: expected memory"):
        validate(with_steps(*steps))


def test_a_step_along_the_last_of_six_dimensions_is_valid():
    deep = with_steps(
        Step("reshape", ("w",), ("deep",), {"shape": (1, 1, 1, 1, 4, 8)}),
        Step("standardized", ("deep",), ("even",), {"dim": 5}),
        Step("reshape", ("even",), ("v",), {"shape": (8, 4)}),
        Step("linear", ("x", "v"), ("y",)),
    )
    assert validate(deep)["forward"]["even"].shape == (1, 1, 1, 1, 4, 8)


def test_a_channel_axis_may_be_the_last_of_six_dimensions():
    deep = with_steps(
        Step("reshape", ("w",), ("deep",), {"shape": (1, 1, 1, 1, 4, 8)}),
        Step("quantize_channels", ("deep", "scales", "zeros"), ("q",), {"axis": 5}),
        Step("dequantize_channels", ("q", "scales", "zeros"), ("even",), {"axis": 5}),
        Step("reshape", ("even",), ("v",), {"shape": (8, 4)}),
        Step("linear", ("x", "v"), ("y",)),
    )
    stored = (Tensor("scales", "buffer", (8,)), Tensor("zeros", "buffer", (8,), dtype="int64", high=4))
    assert validate(change(deep, tensors=(*deep.tensors, *stored)))["forward"]["even"].shape[5] == 8


def test_group_norm_of_one_number_is_refused():
    one = Step("group_norm", ("x", "w", "w"), ("y",), {"groups": 2})
    program = change(with_steps(one), tensors=(Tensor("w", "parameter", (2,)),))

    def of(*shape: int) -> Program:
        return change(program, methods=(change(program.methods[0], inputs=(Input("x", shape),)),))

    with pytest.raises(ProgramError, match="expected more than one number for each group"):
        validate(of(1, 2, 1))
    validate(of(1, 2, 2))


def test_weight_norm_goes_before_other_parametrizations():
    attrs = {"in_features": 4, "out_features": 4, "bias": False}
    kinds = (Parametrization("scale"), Parametrization("weight_norm"))
    with pytest.raises(ProgramError, match="expected weight_norm before any other"):
        validate(change(LINEAR, layers=(Layer("linear", "Linear", attrs, kinds),)))
    validate(change(LINEAR, layers=(Layer("linear", "Linear", attrs, kinds[::-1]),)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        encode(LINEAR)[:-9],
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"methods": [], "calls": [], "surprise": 1}',
        b'{"methods": 3, "calls": []}',
    ],
)
def test_decode_refuses_what_is_no_program(data):
    with pytest.raises(ProgramError, match="expected a program as JSON"):
        decode(data)


def test_prune_keeps_what_outputs_and_state_need():
    program = change(
        with_steps(
            Step("relu", ("x",), ("dead",)),
            Step("mul", ("x", "x"), ("m",)),
            Step("add_", ("b", "m")),
            Step("relu", ("x",), ("y",)),
        ),
        tensors=(*LINEAR.tensors, Tensor("b", "buffer", (2, 4)), Tensor("u", "parameter", (1,))),
    )
    pruned = prune(program)
    assert [step.op for _, step in pruned.walk()] == ["mul", "add_", "relu"]
    assert [tensor.name for tensor in pruned.tensors] == ["b"]
