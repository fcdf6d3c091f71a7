"""The original: a program before any fold, as everything that the oracles compare with.

There are two kinds: one built from a ``Program``, of which the facts and the twin are known, and one that a
user exported, of which they are not.
"""

from __future__ import annotations

import copy
import hashlib
import linecache
import operator
import sys
import types
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from generators.facts import RANDOM, STATE, Facts, Weight, facts_of
from generators.program import Program
from generators.render import export_statements, render
from generators.twin import Twin, twin_of
from oracles import graph
from oracles.arithmetic import Double, Shaken, double, shake, shaken
from oracles.lowering import Outputs, Report, clone
from oracles.stages import artefact, stage

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
Call = tuple[str, Inputs]


class Original(ABC):
    """A program before any fold. Artefacts are computed once; exported programs are handed out as copies."""

    facts: Facts | None

    def __init__(self, report: Report) -> None:
        self.report = report

    @property
    @abstractmethod
    def calls(self) -> list[Call]:
        """The calls it is judged on: method, and its positional and keyword inputs."""

    @abstractmethod
    def exported(self) -> dict[str, ExportedProgram]:
        """A fresh copy of the exported program of each method."""

    @property
    @abstractmethod
    def eager(self) -> Outputs:
        """Outputs of each call in float32, outside ExecuTorch; state persists from call to call."""

    @property
    @abstractmethod
    def shaken(self) -> Outputs:
        """Outputs of each call where every float read or computed is off by a rounding error or two."""

    @property
    @abstractmethod
    def reference(self) -> Outputs:
        """Outputs of each call that numerics are measured from: float64, or eager where quantized."""

    @abstractmethod
    def random_outputs(self, method: str) -> frozenset[int]:
        """Positions of the outputs of ``method`` that depend on a random draw."""

    def foreign_outputs(self, method: str) -> frozenset[int]:
        """Positions of the outputs of ``method`` that depend on what another method writes."""
        return frozenset()

    @abstractmethod
    def stateful_outputs(self, method: str) -> frozenset[int]:
        """Positions of the outputs of ``method`` that depend on state which a call writes."""

    @property
    @abstractmethod
    def written(self) -> Mapping[str, frozenset[str]]:
        """Names of the buffers and inputs that each method writes."""

    @abstractmethod
    def twin(self, weights: Iterable[Weight]) -> dict[str, ExportedProgram]:
        """The exported twin: these weights, of which the facts tell, folded by hand."""

    @property
    @abstractmethod
    def reductions(self) -> int:
        """Sum of the lengths of all reductions, and one for every other op: scales rounding errors."""

    @artefact
    def functional(self) -> dict[str, ExportedProgram]:
        """The exported programs, functionalized and not decomposed."""
        with stage("functionalize", self.report):
            return {name: program.run_decompositions({}) for name, program in self.exported().items()}

    @artefact
    def structure(self) -> tuple[str, ...]:
        """The structure of the functionalized programs."""
        return tuple(graph.structure(program) for program in self.functional.values())

    @artefact
    def quantization_ops(self) -> Counter[str]:
        """The quantized_decomposed and torchao ops of the program."""
        total: Counter[str] = Counter()
        for program in self.functional.values():
            total += graph.quantization_ops(graph.ops(program))
        return total


def load_source(source: str) -> dict[str, Any]:
    """Executes rendered source and returns its globals; tracebacks and inspect see the text."""
    name = "program_" + hashlib.sha256(source.encode()).hexdigest()[:16]
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    # torch.cond and strict export trace by bytecode, which looks the module up by its name; dynamo keeps what
    # it found under a name, so that no two programs may have the same.
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, filename, "exec"), module.__dict__)  # vocabulary code only: see ``validate``
    return module.__dict__


def export(program: Program, namespace: dict[str, Any], model: Any) -> dict[str, ExportedProgram]:
    """Exports the methods of ``model`` as the program says, by the statements that a script would hold."""
    torch.manual_seed(0)
    scope = {**namespace, "model": model}
    exec(compile("\n".join(export_statements(program)), "<export>", "exec"), scope)
    programs: dict[str, ExportedProgram] = scope["programs"]
    return programs


class ProgramOriginal(Original):
    """The original of a valid ``Program``: built by executing its rendered source."""

    def __init__(self, program: Program, report: Report) -> None:
        super().__init__(report)
        self.program = program
        self.facts: Facts = facts_of(program)
        self.source = render(program)
        self._namespace = load_source(self.source)

    def _inputs(self, method: str, seed: int, sizes: Mapping[str, int] = {}) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        made: tuple[Any, ...] = self._namespace["INPUTS"][method](**sizes)
        return made

    @artefact
    def calls(self) -> list[Call]:
        return [
            (call.method, (self._inputs(call.method, call.seed, call.sizes), {}))
            for call in self.program.calls
        ]

    @artefact
    def _built(self) -> Any:
        with stage("build", self.report):
            return self._namespace["build"]()

    def _model(self) -> Any:
        """A module as it is before the first call. Quantization flows are slow: they run once."""
        return copy.deepcopy(self._built)

    @artefact
    def _pristine(self) -> dict[str, ExportedProgram]:
        model = self._model()
        with stage("export", self.report):
            return export(self.program, self._namespace, model)

    def exported(self) -> dict[str, ExportedProgram]:
        return {name: copy.deepcopy(program) for name, program in self._pristine.items()}

    def _call(self, model: Any, convert: Callable[[Any], Any]) -> Outputs:
        outputs = []
        with torch.no_grad():
            for method, (inputs, _) in self.calls:
                args = [convert(clone(item)) for item in inputs]
                results = getattr(model, method)(*args)
                outputs.append([clone(item) for item in pytree.tree_leaves(results)])
        return outputs

    @artefact
    def eager(self) -> Outputs:
        model = self._model()
        with stage("eager", self.report):
            return self._call(model, lambda item: item)

    @artefact
    def shaken(self) -> Outputs:
        model = self._model()
        shake(model)
        with stage("eager", self.report), Shaken():
            return self._call(model, shaken)

    @artefact
    def reference(self) -> Outputs:
        if self.facts.quantized or not self.facts.float64:
            return self.eager
        model = self._model().double()
        _ = self.calls  # Drawn before float64 is the default.
        with stage("eager in float64", self.report):
            torch.set_default_dtype(torch.float64)
            try:
                with Double():
                    return self._call(model, double)
            finally:
                torch.set_default_dtype(torch.float32)

    def random_outputs(self, method: str) -> frozenset[int]:
        return self._labelled(method, RANDOM)

    def stateful_outputs(self, method: str) -> frozenset[int]:
        return self._labelled(method, STATE)

    def foreign_outputs(self, method: str) -> frozenset[int]:
        others = (names for name, names in self.facts.written.items() if name != method)
        foreign = frozenset().union(*others)
        outputs = self.facts.outputs[method]
        return frozenset(i for i, value in enumerate(outputs) if value.sources & foreign)

    def _labelled(self, method: str, label: str) -> frozenset[int]:
        outputs = self.facts.outputs[method]
        return frozenset(i for i, value in enumerate(outputs) if label in value.labels)

    @property
    def written(self) -> Mapping[str, frozenset[str]]:
        return self.facts.written

    @property
    def reductions(self) -> int:
        return self.facts.reductions

    def twin(self, weights: Iterable[Weight]) -> dict[str, ExportedProgram]:
        twin = twin_of(self.program, weights)
        with stage("build (twin)", self.report), torch.no_grad():
            original = self._new(self._namespace)
            values = self._folded_values(twin, original)
            namespace = load_source(render(twin.program))
            model = self._new(namespace)
            _adopt(model, original)
            for name, value in values.items():
                setattr(model, name, torch.nn.Parameter(value))
            model = namespace.get("quantize", lambda same: same)(model)
        with stage("export (twin)", self.report):
            return export(twin.program, namespace, model)

    def _new(self, namespace: dict[str, Any]) -> torch.nn.Module:
        torch.manual_seed(0)
        model: torch.nn.Module = namespace["Model"]()
        return model if self.program.train else model.eval()

    def _folded_values(self, twin: Twin, original: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Values of the twin's new parameters: what those weights of the original compute."""
        attributes = {name: operator.attrgetter(path)(original) for name, path in twin.attributes.items()}
        if twin.probe is not None:
            probe = self._new(load_source(render(twin.probe)))
            for method, names in twin.probed.items():
                results = getattr(probe, method)(*self._inputs(method, 0))
                attributes |= dict(zip(names, pytree.tree_leaves(results), strict=True))
        return {
            name: value.clone(memory_format=torch.contiguous_format) for name, value in attributes.items()
        }


def _adopt(model: torch.nn.Module, original: torch.nn.Module) -> None:
    """Gives ``model`` the very tensors of ``original`` that have the same name: values, layout, ties."""
    for name, module in model.named_modules():
        for tensors in (module._parameters, module._buffers):
            for key in tensors:
                path = f"{name}.{key}" if name else key
                try:
                    tensors[key] = operator.attrgetter(path)(original)
                except AttributeError:
                    continue  # A new parameter of the twin.


class ExportedOriginal(Original):
    """The original of a program that a user saved, called with its example inputs.

    One that writes state is called three times, so that what a call leaves behind is seen.
    """

    facts = None

    def __init__(self, program: ExportedProgram, report: Report) -> None:
        super().__init__(report)
        if program.example_inputs is None:
            raise ValueError("expected an exported program with example inputs, got one without")
        self._program = program
        args, kwargs = program.example_inputs
        self._inputs: Inputs = (tuple(args), dict(kwargs))

    @property
    def calls(self) -> list[Call]:
        calls = 3 if any(self.written.values()) else 1
        return [("forward", self._inputs)] * calls

    def exported(self) -> dict[str, ExportedProgram]:
        return {"forward": copy.deepcopy(self._program)}

    def _call(self, seed: int, shaking: bool = False) -> Outputs:
        model = copy.deepcopy(self._program).module()
        if shaking:
            shake(model)
        torch.manual_seed(seed)
        with torch.no_grad():
            calls = [pytree.tree_map(shaken if shaking else clone, inputs) for _, inputs in self.calls]
            return [[clone(x) for x in pytree.tree_leaves(model(*a, **k))] for a, k in calls]

    @artefact
    def eager(self) -> Outputs:
        with stage("eager", self.report):
            return self._call(0)

    @property
    def reference(self) -> Outputs:
        return self.eager

    @artefact
    def shaken(self) -> Outputs:
        with stage("eager", self.report), Shaken():
            return self._call(0, shaking=True)

    @artefact
    def _again(self) -> Outputs:
        with stage("eager", self.report):
            return self._call(1)

    def random_outputs(self, method: str) -> frozenset[int]:
        """The outputs that another seed changes."""
        return frozenset(
            i
            for first, second in zip(self.eager, self._again, strict=True)
            for i, (a, b) in enumerate(zip(first, second, strict=True))
            if isinstance(a, torch.Tensor) and not torch.equal(a, b)
        )

    def stateful_outputs(self, method: str) -> frozenset[int]:
        """The outputs that change from call to call although the inputs do not."""
        first = self.eager[0]
        return frozenset(
            i
            for later in self.eager[1:]
            for i, (a, b) in enumerate(zip(first, later, strict=True))
            if isinstance(a, torch.Tensor) and not torch.equal(a, b)
        )

    @property
    def written(self) -> Mapping[str, frozenset[str]]:
        return {name: graph.mutated(program) for name, program in self.functional.items()}

    def twin(self, weights: Iterable[Weight]) -> dict[str, ExportedProgram]:
        raise NotImplementedError("nothing is known of the weights of a saved program")

    @property
    def reductions(self) -> int:
        return sum(graph.reductions(program) for program in self.functional.values())
