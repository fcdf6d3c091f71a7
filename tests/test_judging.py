"""Judging in the sandbox, the reducer, and the findings on disk."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest

from corpus.store import CASES, CaseError, load, save
from fuzz.campaign import Budget, _reduce, drawn, fuzz
from fuzz.findings import Findings, features
from fuzz.judging import Judge, RefusedError
from fuzz.messages import Request
from fuzz.reducer import reduce
from fuzz.sandbox import Death
from fuzz.subjects import SubjectError, check_name
from generators.program import Call, Dim, Input, Method, Program, Step, Tensor
from generators.strategies import draws, programs
from generators.validate import validate
from oracles.verdict import Finding, Verdict

HERE = Path(__file__).parent


def case(name: str):
    return load(CASES / f"{name}.json").program


@pytest.fixture(scope="module")
def fold_judge():
    with Judge("fold") as judge:
        judge(case("transposed-linear"))
        yield judge


def test_killing_the_child_from_outside_is_a_finding_that_blames_nobody(fold_judge):
    def kill() -> None:
        time.sleep(0.3)
        os.kill(fold_judge._sandbox.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    (finding,) = fold_judge(case("quantized-and-parametrized"), ("lowers",)).findings
    thread.join()
    assert finding.oracle == "lowers" and finding.exception == "SIGKILL" and finding.stage
    assert "SIGKILL" in finding.got and finding.attribution == "flaky"
    assert fold_judge(case("weight-norm-conv1d")).outcome == "passes"


@pytest.mark.parametrize("way", ["segfault", "hang"])
def test_a_fold_that_kills_the_process_is_convicted_and_the_run_goes_on(monkeypatch, way):
    monkeypatch.syspath_prepend(str(HERE))
    with Judge(f"deadly_folds:{way}", seconds=20) as judge:
        (finding, *_) = judge(case("transposed-linear"), ("lowers",)).findings
        assert finding.attribution == "fault" and finding.stage == "fold"
        expected = {"segfault": "SIGSEGV", "hang": "timeout"}
        assert finding.exception == expected[way]
        # The same fold lets a program without a transpose pass.
        assert judge(case("spectral-norm-linear"), ("lowers",)).outcome == "passes"


class Slow:
    """A sandbox in which the program takes stock 15 s, and the fold for ever."""

    def ask(self, request, seconds):
        asked = msgspec.json.decode(request, type=Request)
        if asked.subject == "stock" and seconds > 15:
            return msgspec.json.encode(Verdict("passes"))
        return Death("timeout", f"{seconds:g} s", f"lower ({asked.subject})", "")

    def close(self) -> None:
        """There is no child."""


@pytest.mark.parametrize("limit, attribution", [(20, "upstream"), (60, "fault")])
def test_a_program_that_is_slow_without_a_fold_convicts_nobody(limit, attribution):
    with Judge("fold", seconds=limit) as judge:
        judge._sandbox = Slow()
        (finding,) = judge(case("transposed-linear")).findings
    assert (finding.attribution, finding.exception) == (attribution, "timeout")


def test_a_subject_that_cannot_be_made_is_refused_and_not_called_upstream(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    said = "expected deadly_folds:Unmade to make a partitioner, got KeyError: 'no'"
    with Judge("deadly_folds:Unmade") as judge, pytest.raises(RefusedError, match=said):
        judge(case("transposed-linear"))
    with pytest.raises(SubjectError, match="expected a subject among"):
        check_name("deadly_folds:nothing")


@pytest.mark.parametrize(("status", "said"), [("0", "exit status 0"), ("os._exit(3)", "exit status 3")])
def test_a_subject_whose_import_ends_the_process_is_named(monkeypatch, tmp_path, status, said):
    text = f"import os, sys\n{status if 'os' in status else f'sys.exit({status})'}\n"
    (tmp_path / "leaving.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SubjectError, match=f"expected leaving:fold to import, .*{said}"):
        check_name("leaving:fold")


def test_an_instance_and_the_installed_partitioner_are_subjects(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    with Judge("deadly_folds:instance") as judge:
        assert judge(case("weight-norm-conv1d"), ("lowers", "partitions")).outcome == "passes"
    with Judge("installed") as judge:
        # ExecuTorch 1.5.1 has no fold, so that what must fold is left.
        assert [f.attribution for f in judge(case("weight-norm-conv1d")).findings] == ["gap"]


def test_verdicts_are_remembered(fold_judge):
    program = case("weight-norm-conv1d")
    first = fold_judge(program)
    starts = fold_judge._sandbox.starts
    os.kill(fold_judge._sandbox.pid, signal.SIGKILL)
    assert fold_judge.known(program) and fold_judge(program) is first
    assert fold_judge._sandbox.starts == starts


def test_reducer_finds_the_consumer_and_its_weight():
    """A finding stands in for the oracle: a linear whose weight is made by a narrow."""

    def shows(program) -> bool:
        validate(program)
        owned = {tensor.name for tensor in program.tensors}
        for method in program.methods:
            makers = {out: step for step in method.steps for out in step.outs}
            for step in method.steps:
                made = makers.get(step.args[1]) if step.op == "linear" else None
                if made is not None and made.op == "narrow" and owned.issuperset(made.args):
                    return True
        return False

    names = ("slice", "linear", "conv1d", "scaled", "lora", "accumulate", "view-write", "activation")
    strategy = draws(names).map(lambda item: item.program)
    large = [program for program in drawn(strategy, 300, 1, "reduce") if shows(program)]
    assert len(large) >= 5
    for program in large[:20]:
        small = reduce(program, shows, seconds=30)
        assert [step.op for _, step in small.walk()] == ["narrow", "linear"]
        assert len(small.calls) == 1 and len(small.tensors) == 1 and len(small.methods[0].inputs) == 1


def test_reducer_takes_options_back():
    """Nothing but the linear matters: sizes, storage, ties and export options become the plainest."""
    w = Tensor("w", "parameter", (4, 4), "mixed", requires_grad=False, layout="strided", tag="weights")
    method = Method(
        "forward",
        (Input("x", (2, 4), dims=("batch", "")),),
        (Step("linear", ("x", "w"), ("v",)), Step("linear", ("v", "u"), ("y",))),
        ("y",),
    )
    calls = (Call("forward", 0, {"batch": 5}),)
    tied = msgspec.structs.replace(w, name="u", tied="w")
    program = Program((method,), calls, (w, tied), dims=(Dim("batch", 1, 8),), strict=True, grad=True)
    small = reduce(program, lambda one: any(step.op == "linear" for _, step in one.walk()), seconds=30)
    assert small.steps == 1 and small.dims == () and not small.strict and not small.grad
    assert small.methods[0].inputs[0].dims == () and small.calls == (Call("forward"),)
    assert all(t == Tensor(t.name, "parameter", t.shape) for t in small.tensors)


def test_reducer_stops_in_time_with_the_best_so_far():
    program = max(drawn(programs(), 60, 2, "slow"), key=lambda p: p.steps)

    def shows(candidate) -> bool:
        time.sleep(0.05)
        return candidate.steps >= 2

    started = time.monotonic()
    small = reduce(program, shows, seconds=0.5)
    assert time.monotonic() - started < 2
    assert small.steps < program.steps


FINDING = Finding("numerics", "fault", "rule", "expected", "got")


def test_findings_are_on_disk_whole_and_once(tmp_path):
    findings, other = Findings(tmp_path, "r"), Findings(tmp_path, "r")
    program = case("slice-of-weight")
    assert findings.claim(FINDING) and other.claim(FINDING) and not findings.claim(FINDING)
    raw = findings.raw(FINDING, program, "some")
    assert load(raw).program == program and load(raw).expect["some"].verdict == "numerics fault"
    path = findings.reduced(FINDING, program, "some")
    assert path is not None and load(path).program == program
    assert other.reduced(FINDING, program, "some") is None
    assert "narrow" in features(program)


class Flaky:
    """A judge whose child dies on every program, and not a second time."""

    subject = "fold"

    def known(self, program) -> bool:
        return False

    def __call__(self, program):
        found = msgspec.structs.replace(FINDING, attribution="flaky", exception="SIGKILL")
        return Verdict("findings", (found,))


def test_a_flaky_death_is_kept_and_counted_and_fails_nothing(tmp_path):
    findings = Findings(tmp_path, "r")
    result = fuzz(programs(), Flaky(), findings, Budget(programs=2), 0, "x")
    assert not result.found and not result.repeated
    assert findings.total().findings == {"numerics flaky": 2}
    (kept,) = (tmp_path / "raw").glob("*.json")
    assert load(kept).expect["fold"].verdict == "numerics flaky"


class Repeating(Flaky):
    """A judge that has seen every program before."""

    def known(self, program) -> bool:
        return True


def test_a_target_without_new_programs_ends(tmp_path):
    result = fuzz(programs(), Repeating(), Findings(tmp_path, "r"), Budget(programs=1), 0, "x")
    assert result.tally.judged == 0


class Wandering:
    """A judge for whom a program of two linears shows a fault, and one of a single linear upstream's."""

    subject = "fold"

    def __init__(self) -> None:
        self.asked: list[Program] = []

    def known(self, program) -> bool:
        return bool(self.asked)

    def shows(self, program, finding) -> bool:
        return self.linears(program) > 0

    def linears(self, program) -> int:
        return sum(step.op == "linear" for _, step in program.walk())

    def __call__(self, program, oracles=()):
        self.asked.append(program)
        attribution = "fault" if self.linears(program) > 1 else "upstream"
        return Verdict("findings", (msgspec.structs.replace(FINDING, attribution=attribution),))


def two_linears():
    names = ("slice", "linear", "scaled", "lora")
    strategy = draws(names).map(lambda item: item.program)
    return strategy.filter(lambda program: Wandering().linears(program) > 1)


def test_a_finding_that_turns_into_upstreams_is_reduced_as_far_as_it_is_ours(tmp_path):
    judge = Wandering()
    (found,) = fuzz(two_linears(), judge, Findings(tmp_path, "r"), Budget(programs=1), 0, "x").found
    assert found.finding.attribution == "fault" and judge.linears(found.program) == 2
    assert found.program.steps <= 3 < judge.asked[0].steps
    assert [judge.linears(program) for program in judge.asked[:2]] == [judge.linears(judge.asked[0]), 1]


def test_a_finding_without_time_to_reduce_it_is_not_judged_again():
    judge, program = Wandering(), case("slice-of-weight")
    assert _reduce(FINDING, program, judge, 0.0) == (FINDING, program)
    assert not judge.asked


def test_an_error_of_the_engine_is_raised_and_not_taken_for_a_finding(tmp_path):
    class Broken:
        subject = "fold"

        def known(self, program) -> bool:
            return False

        def __call__(self, program):
            raise ZeroDivisionError("engine")

    findings = Findings(tmp_path, "r")
    with pytest.raises(ZeroDivisionError, match="engine"):
        fuzz(programs(), Broken(), findings, Budget(programs=3), 0, "x")
    assert findings.total().judged == 0


def test_save_leaves_nothing_behind_when_it_fails(tmp_path):
    loaded = load(CASES / "slice-of-weight.json")
    with pytest.raises(TypeError):
        save(msgspec.structs.replace(loaded, about=object()), tmp_path / "case.json")
    assert list(tmp_path.iterdir()) == []


def test_load_names_the_file(tmp_path):
    with pytest.raises(CaseError, match=r"nowhere\.json: expected a readable case"):
        load(tmp_path / "nowhere.json")
