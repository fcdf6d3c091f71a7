"""The stand-alone script of a case: shows the failure with torch, torchao and executorch alone."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import fold
from corpus.store import Case, Expectation
from fuzz import published
from generators.render import render
from oracles.judge import ORACLES

XNNPACK = "from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner"
EXPORT = """model, programs = build(), {}
with torch.no_grad():
    for name, inputs in INPUTS.items():
        model.forward = getattr(model, name)
        programs[name] = torch.export.export(model, inputs())"""
LOWER = """manager = to_edge_transform_and_lower(programs, partitioner=[Partitioner()])"""
SERIALIZE = """config = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass([""])])
pte = manager.to_executorch(config).buffer"""


def script(case: Case, subject: str) -> str:
    """Source of a script that exits with 1 where the failure shows, and with 0 where it does not.

    ``subject`` is one that the case expects something of; for another one the outputs are compared.
    """
    expected = case.expect.get(subject, Expectation("passes"))
    oracle = ORACLES[expected.verdict.split()[0]] if " " in expected.verdict else ORACLES["numerics"]
    goal = expected.goal if expected.goal != "None" else "(0, 0, 1e-3)"
    check = oracle.script.replace("{{}}", "{}").replace("{goal}", goal)
    early = expected.stage in ("fold", "lower", "functionalize")
    if oracle.name == "lowers" and early:
        check = "return False"
    body = [EXPORT]
    if oracle.name != "quantization":
        body.append(LOWER)
    if "pte" in check or expected.stage == "serialize":
        body.append(SERIALIZE)
    main = "\n".join([*body, check])
    return "\n\n".join(
        [
            f"# {case.about}\n# Rule: {oracle.rule}\n{_imports(main, subject)}",
            _model(case),
            _partitioner(subject),
            "def main():\n" + "\n".join("    " + line for line in main.splitlines()),
            'if __name__ == "__main__":\n    sys.exit(main())\n',
        ]
    )


def _model(case: Case) -> str:
    return render(case.program).strip()


def _imports(main: str, subject: str) -> str:
    lines = ["import sys"]
    if subject in ("stock", "installed"):
        lines.append(XNNPACK + " as Partitioner")
    names = [name for name in ("ExecutorchBackendConfig", "to_edge_transform_and_lower") if name in main]
    if names:
        lines.append(f"from executorch.exir import {', '.join(names)}")
    if "InitializedMutableBufferPass" in main:
        lines.append("from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass")
    if "_load_for_executorch_from_buffer" in main:
        lines.append("import executorch.kernels.quantized")
        lines.append(
            "from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer"
        )
    return "\n".join(lines)


def _partitioner(subject: str) -> str:
    """Source that defines ``Partitioner``, the subject."""
    if subject == "stock":
        return "Partitioner.transform_for_pre_decomposition = lambda self, program: program"
    if subject == "installed":
        return ""
    if subject == "fold":
        return _embedded_fold()
    if subject.startswith("constant-prop"):
        return _published(subject)
    module, _, attribute = subject.partition(":")
    return f"from {module} import {attribute.split('.')[0]}\n\nPartitioner = {attribute}"


def _published(subject: str) -> str:
    """The published fold with only the class that is wanted, under the name ``Partitioner``."""
    source = inspect.getsource(published)
    source = source[source.index("from executorch") :]
    name, other = "ConstantProp", "ConstantPropUnfunctionalized"
    if subject.endswith("unfunctionalized"):
        name, other = other, name
    source = re.sub(rf"class {other}\(.*?(?=\n\n\n)", "", source, flags=re.DOTALL)
    source = source.replace(f"class {name}(", "class Partitioner(")
    return re.sub(r"\n{2,}", "\n\n", source).strip()


def _embedded_fold() -> str:
    """The fold's own modules as text, so that the script needs no installation of this project."""
    folder = Path(fold.__file__).parent
    sources = {
        f"fold.{path.stem}" if path.stem != "__init__" else "fold": path.read_text()
        for path in sorted(folder.glob("*.py"))
    }
    listed = "\n".join(f"    {name!r}: {text!r}," for name, text in sources.items())
    return f"""import importlib.abc, importlib.util
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
