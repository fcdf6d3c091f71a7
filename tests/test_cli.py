"""The command line and the pytest options: exit status, one sentence, and nothing run from a bad case."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from corpus.store import CASES, load
from fuzz.script import script
from generators.program import decode

ROOT = Path(__file__).parent.parent
CASE = CASES / "slice-of-weight.json"


def command(*args: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "fuzz", *map(str, args)]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=300)


def pytest_run(*args: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, args)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=600)


def broken(change) -> bytes:
    data = json.loads(CASE.read_bytes())
    change(data)
    return json.dumps(data).encode()


def step(data) -> dict:
    return data["program"]["methods"][0]["steps"][0]


BAD = {
    "truncated": CASE.read_bytes()[:300],
    "empty": b"",
    "not text": b"\xff\xfe\x00",
    "unknown version": broken(lambda d: d.update(version=99)),
    "unknown program version": broken(lambda d: d["program"].update(version=99)),
    "unknown op": broken(lambda d: step(d).update(op="os.system")),
    "no identifier": broken(lambda d: step(d).update(outs=["v 1"])),
    "smuggled name": broken(lambda d: d["program"]["tensors"][0].update(name="w=open('smuggled','w')#")),
    "smuggled literal": broken(lambda d: step(d)["attrs"].update(dim="open('smuggled','w')")),
    "smuggled goal": broken(
        lambda d: d["expect"]["constant-prop"].update(goal="open('smuggled','w').close()")
    ),
    "goal of another oracle": broken(lambda d: d["expect"]["constant-prop"].update(goal="[1, 2]")),
    "goal that is text": broken(lambda d: d["expect"]["constant-prop"].update(goal="'x'")),
    "call that is not there": broken(lambda d: d["expect"]["constant-prop"].update(goal="(99, 99, 1.0)")),
    "goal without end": broken(lambda d: d["expect"]["constant-prop"].update(goal="(0, 0, 1e999)")),
    "smuggled subject": broken(lambda d: d["expect"].update({"a:b;c()": d["expect"]["fold"]})),
    "unknown verdict": broken(lambda d: d["expect"]["fold"].update(verdict="fine")),
    "smuggled comment": broken(lambda d: d.update(about="a\nopen('smuggled','w')")),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("verb", ["replay", "show"])
def test_a_bad_case_gets_one_sentence_and_status_2(tmp_path, verb, name):
    path = tmp_path / "case.json"
    path.write_bytes(BAD[name])
    done = command(verb, path, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and "expected" in lines[0] and str(path) in lines[0]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "args",
    [
        ("replay", "nowhere.json"),
        ("show", "nowhere.json"),
        ("replay", CASE, "--subject", "nothing"),
        ("replay", CASE, "--subject", "no.such:module"),
        ("show", CASE, "--subject", "json:loads.nothing"),
        ("check", "nowhere.pt2", "--subject", "nothing"),
    ],
)
def test_bad_usage_gets_one_sentence_and_status_2(args):
    done = command(*args)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and "expected" in done.stderr


@pytest.mark.parametrize("name", ["nope", "constant-prop-zzz"])
def test_show_refuses_a_case_that_convicts_an_unknown_subject(tmp_path, name):
    path = tmp_path / "case.json"
    path.write_bytes(broken(lambda d: d.update(expect={name: d["expect"]["constant-prop"]})))
    done = command("show", path)
    assert done.returncode == 2 and "expected a subject among" in done.stderr and name in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_subject_lists_the_names():
    done = command("replay", CASE, "--subject", "nothing")
    for name in ("fold", "constant-prop", "stock", "installed", "package.module:attribute"):
        assert name in done.stderr


def test_check_refuses_what_is_no_exported_program(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"PK nothing")
    done = command("check", path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and "torch.export.save" in done.stderr


def test_show_prints_a_script_that_needs_nothing_of_ours():
    done = command("show", CASE)
    assert done.returncode == 0
    assert done.stdout == script(load(CASE), "constant-prop")
    assert len(done.stdout.splitlines()) <= 45
    for ours in ("generators", "oracles", "corpus", "fuzz"):
        assert f"import {ours}" not in done.stdout and f"from {ours}" not in done.stdout


@pytest.mark.parametrize(
    ("subject", "status", "said"),
    [("constant-prop", 1, "off by"), ("stock", 1, "delegates: 2"), ("fold", 0, "")],
)
def test_script_shows_the_failure_alone(tmp_path, subject, status, said):
    path = tmp_path / "script.py"
    path.write_text(script(load(CASE), subject))
    # -P and another folder: the packages of this project must not be what makes it work.
    alone = "import sys, runpy; sys.path[:] = [p for p in sys.path if 'foldfuzz' not in p]; "
    alone += "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f).lower()]; "
    alone += f"runpy.run_path({str(path)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", alone], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == status, done.stderr[-2000:]
    assert said in done.stdout + done.stderr


def test_replay_says_what_was_found_and_ends_with_1():
    done = command("replay", CASE, "--subject", "constant-prop")
    assert done.returncode == 1
    assert "fault" in done.stdout and "numerics" in done.stdout and "off by" in done.stdout


def test_fuzzing_prints_the_finding_and_keeps_the_case(tmp_path):
    done = pytest_run(
        "fuzz/targets.py::test_parametrizations[0]", "--subject", "constant-prop",
        "--fuzz-programs", "10", "--fuzz-seed", "3", "--findings", tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout[-3000:]
    kept = [path for path in tmp_path.glob("*.json") if not path.name.startswith("tally")]
    assert kept and all(load(path).expect["constant-prop"] for path in kept)
    for text in ("expected:", "got:", "class Model(nn.Module):", "foldfuzz replay", "foldfuzz show"):
        assert text in done.stdout
    assert "reproduce_failure" not in done.stdout and "Traceback" not in done.stdout
    assert "distinct programs judged" in done.stdout
    assert not list(tmp_path.glob("running-*"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--subject", "nothing"),
        ("--fuzz-time", "soon"),
        ("--fuzz-time", "0s"),
        ("--fuzz-programs", "0"),
        ("--fuzz-seed", "x"),
        ("--fuzz-programs", "9" * 400),
        ("--fuzz-time", "9" * 5000),
        ("--findings", "pyproject.toml"),
    ],
)
def test_bad_pytest_options_end_with_2(option, value):
    before = set((ROOT / "findings").glob("*"))
    done = pytest_run("fuzz/", option, value)
    assert done.returncode == 2
    said = done.stdout + done.stderr
    assert "expected" in said and option.lstrip("-") in said and "Traceback" not in said
    assert set((ROOT / "findings").glob("*")) == before


def test_a_run_that_judges_nothing_is_not_green(tmp_path):
    done = pytest_run("fuzz/", "-k", "randomness", "--fuzz-time", "0.01s", "--findings", tmp_path)
    assert done.returncode == 2 and "no program was judged" in done.stdout


def test_generate_prints_programs_of_the_members_asked_for():
    result = command("generate", "-n", "3", "--only", "kv-cache,transpose", "--json")
    assert result.returncode == 0
    programs = [decode(line.encode()) for line in result.stdout.splitlines()]
    assert len(programs) == 3
    ops = {step.op for program in programs for _, step in program.walk()}
    assert "t" in ops and ops & {"index_put_", "index_copy_"} and "add_" not in ops


def test_generate_refuses_what_is_no_member():
    result = command("generate", "--only", "kv-cash")
    assert result.returncode == 2 and "expected members" in result.stderr and "kv-cash" in result.stderr


def test_generate_counts_what_is_drawn():
    result = command("generate", "-n", "6", "--only", "linear,transpose,dropout", "--stats", "--json")
    stats = json.loads(result.stdout)
    assert stats["programs"] == 6 and stats["valid_share"] == 1 and stats["invalid_reasons"] == {}
    assert set(stats["members"]) == {"linear", "transpose", "dropout"} and stats["steps_mean"] > 0
