"""The stand-alone script of a case: shows the failure with torch, torchao and executorch alone.

The program's own source, then the subject as ``Partitioner``, then the check of the oracle that fired.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from corpus.store import Case, Expectation
from fuzz.subjects import BUILT_IN
from generators.facts import facts_of
from generators.program import Program
from generators.render import export_statements, render
from oracles.catalogue import ORACLES

IMPORTS = {
    "re.findall": "import re",
    "Counter": "from collections import Counter",
    "XnnpackPartitioner": "from executorch.backends.xnnpack.partition.xnnpack_partitioner "
    "import XnnpackPartitioner",
    "ExecutorchBackendConfig": "from executorch.exir import ExecutorchBackendConfig",
    "to_edge_transform_and_lower": "from executorch.exir import to_edge_transform_and_lower",
    "constant_prop_pass": "from executorch.exir.passes.constant_prop_pass import constant_prop_pass",
    "InitializedMutableBufferPass": "from executorch.exir.passes.init_mutable_pass "
    "import InitializedMutableBufferPass",
    "_load_for_executorch_from_buffer": "from executorch.extension.pybindings.portable_lib "
    "import _load_for_executorch_from_buffer",
}
"""What a script imports, by the name that asks for it."""

ROOT = Path(__file__).parent.parent
PUBLISHED, FOLD = ROOT / "fuzz" / "published.py", ROOT / "fold"
BEFORE_SERIALIZE = ("fold", "functionalize", "lower")


def script(case: Case, subject: str) -> str:
    """Source of a script that exits with 1 where the failure shows, and with 0 where it does not.

    Where the case expects nothing of ``subject`` but to pass, the first output is compared.
    """
    expected = case.expect.get(subject, Expectation("passes"))
    name = expected.verdict.split()[0] if " " in expected.verdict else "numerics"
    body = "\n\n".join(
        [
            *([part] if (part := _partitioner(subject)) else []),
            "\n".join(_main(case.program, name, expected)),
        ]
    )
    source = render(case.program)
    if "CALLS" not in body:
        source = "\n".join(line for line in source.split("\n") if not line.startswith("CALLS = "))
    imports = [line for name, line in IMPORTS.items() if name in body]
    if facts_of(case.program).quantized:
        imports.append("import executorch.kernels.quantized  # adds kernels to the runtime")
    header = f"# {case.about}: {ORACLES[name].rule}"
    return "\n".join([header, *imports, source, body, ""])


def _main(program: Program, oracle: str, expected: Expectation) -> Iterator[str]:
    """Exports and lowers, then runs and compares as far as the oracle needs it."""
    yield "model = build()"
    yield from export_statements(program)
    lower = "to_edge_transform_and_lower(programs, partitioner=[Partitioner()])"
    goal = ast.literal_eval(expected.goal)
    if oracle == "lowers" and expected.stage in BEFORE_SERIALIZE:
        yield lower
    elif oracle == "lowers" or ORACLES[oracle].script == "" or (isinstance(goal, tuple) and len(goal) == 3):
        yield from _run(program, lower, oracle == "lowers", goal or (0, 0, 1e-3))
    else:
        if oracle != "quantization":
            yield f"edge = {lower}"
        yield ORACLES[oracle].script.replace("{goal}", expected.goal)


def _run(program: Program, lower: str, only: bool, goal: tuple[int, int, float]) -> Iterator[str]:
    """Runs the calls on the runtime and, unless ``only`` that is wanted, compares one output of one call."""
    call, output, allowed = goal
    written = any(facts_of(program).written.values())
    # Without the pass the initial value of a written buffer is not in the file.
    config = 'ExecutorchBackendConfig(passes=[InitializedMutableBufferPass([""])])' if written else ""
    yield f"manager = {lower}.to_executorch({config})"
    if any(tensor.tag for tensor in program.tensors):
        yield "pte, external = manager.buffer, [bytes(data) for data in manager._tensor_data.values()]"
        yield "module = _load_for_executorch_from_buffer(pte, *external)"
    else:
        yield "module = _load_for_executorch_from_buffer(manager.buffer)"
    calls = program.calls if only else program.calls[: call + 1]
    indent, method = "", f'"{calls[0].method}"'
    sizes, given = "", ", ".join(f"{name}={size}" for name, size in calls[0].sizes.items())
    if len(program.methods) > 1:
        yield "model = build()  # exporting the methods replaced forward"
    if len(calls) > 1:
        sizes, given = (", sizes", "**sizes") if program.dims else ("", "")
        yield f"for method, seed{sizes} in CALLS[:{len(calls)}]:"
        indent, method = "    ", "method"
    yield f"{indent}torch.manual_seed({'seed' if indent else calls[0].seed})"
    yield f"{indent}inputs = INPUTS[{method}]({given})"
    if not only:
        eager = f"getattr(model, {method})" if indent else f"model.{calls[0].method}"
        copies = "*[item.clone() for item in inputs]" if written else "*inputs"
        if written:
            yield f"{indent}with torch.no_grad():"
        yield f"{indent}{'    ' if written else ''}expected = {eager}({copies})"
    if only:
        yield f"{indent}module.run_method({method}, inputs)"
    else:
        method_called = next(m for m in program.methods if m.name == calls[-1].method)
        wanted = "expected" if len(method_called.outputs) == 1 else f"expected[{output}]"
        # The runtime returns the inputs that are written before the outputs.
        written_inputs = facts_of(program).written[method_called.name] & {
            i.name for i in method_called.inputs
        }
        place = output + len(written_inputs)
        yield f"{indent}got = module.run_method({method}, inputs)[{place}]"
        yield f"off = (got - {wanted}).abs().max().item()"
        text = f"off by {{off}}, where rounding explains {allowed:.2g}"
        yield f'raise SystemExit(0 if off <= {allowed:.2g} else f"{text}")'


def _partitioner(subject: str) -> str:
    """Source that defines ``Partitioner``, the subject."""
    if subject == "stock":
        return (
            "class Partitioner(XnnpackPartitioner):\n"
            "    def transform_for_pre_decomposition(self, program):\n"
            "        return program  # no fold"
        )
    if subject == "installed":
        return "Partitioner = XnnpackPartitioner"
    if subject == "fold":
        return _embedded_fold()
    if subject.startswith("constant-prop"):
        return _published(BUILT_IN[subject][0].partition(":")[2])
    module, _, attribute = subject.partition(":")
    return f"from {module} import {attribute.split('.')[0]}\n\nPartitioner = {attribute}"


def _published(name: str) -> str:
    """The published fold: the class ``name`` of its module under the name ``Partitioner``."""
    tree = ast.parse(PUBLISHED.read_text())
    parts = {
        "SKIPPED" if isinstance(node, ast.Assign) else node.name: ast.get_source_segment(
            PUBLISHED.read_text(), node
        )
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.ClassDef))
    }
    return f"{parts['SKIPPED']}\n{parts[name]}".replace(f"class {name}(", "class Partitioner(")


def _embedded_fold() -> str:
    """The fold's own modules as text, so that the script needs no installation of this project."""
    sources = {
        "fold" if path.stem == "__init__" else f"fold.{path.stem}": path.read_text()
        for path in sorted(FOLD.glob("*.py"))
    }
    listed = "\n".join(f"    {name!r}: {text!r}," for name, text in sources.items())
    return f"""import importlib.abc
import importlib.util
import sys

SOURCES = {{  # the fold under test, as it was when this script was written
{listed}
}}

class Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, self, is_package=name == "fold")

    def get_source(self, name):
        return SOURCES[name]

sys.meta_path.insert(0, Finder())
from fold import FoldingXnnpackPartitioner as Partitioner"""
