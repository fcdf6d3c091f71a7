"""The evidence: what a program gives under a subject, computed stage by stage and only when asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from oracles import graph
from oracles.lowering import Lowered, Outputs, Partitions, lower, run
from oracles.original import Original
from oracles.stages import artefact, stage
from oracles.subject import STOCK, Subject, instead, without_fold


class Evidence:
    """Artefacts of one program under one subject. Each is computed once; a stage that raises stays raised.

    ``lowerings`` counts the lowerings that this evidence and its ``stock`` have cost. Without ``attribute``
    nothing is lowered just to tell whose fault something is.
    """

    def __init__(
        self, original: Original, subject: Subject, base: Evidence | None = None, attribute: bool = True
    ) -> None:
        self.attribute = attribute
        self.original = original
        self.subject = subject
        self._base = base or self
        self._partitioner: Any = None
        self._untouched = False
        self._partitioned: dict[tuple[str, ...], Partitions] = {}
        self.lowerings = 0

    @artefact
    def stock(self) -> Evidence:
        """The evidence of the same program and partitioner without the fold."""
        if self.subject is STOCK or self._base is not self:
            return self
        return Evidence(self.original, without_fold(self.subject), self)

    @artefact
    def by_hand(self) -> Evidence | None:
        """The evidence of the program with all that may be folded folded by hand, and lowered without a fold.

        None where nothing may be folded, or nothing is known of it.
        """
        weights = self.original.facts.may_fold() if self.original.facts is not None else []
        if not weights:
            return None
        subject = instead(self.subject, self.original.twin(weights))
        return Evidence(self.original, subject, self)

    @artefact
    def goal(self) -> Partitions | None:
        """How the twin is partitioned: what a perfect fold reaches. None where there is no twin."""
        if self.original.facts is None:
            return None
        weights = self.original.facts.must_fold()
        if not weights:
            return self._goal(self.original.exported(), self.original.structure)
        programs = self.original.twin(weights)
        with stage("functionalize (twin)", self.original.report):
            functional = (program.run_decompositions({}) for program in programs.values())
            key = tuple(graph.structure(program) for program in functional)
        return self._goal(programs, key)

    def _goal(self, programs: dict[str, ExportedProgram], key: tuple[str, ...]) -> Partitions:
        known = self._base._partitioned
        if key not in known:
            self._base.lowerings += 1
            bare = without_fold(self.subject).partitioner()
            lowered = lower(programs, bare, "twin", self.original.report)
            known[key] = Partitions(lowered.delegates, lowered.outside)
        return known[key]

    @artefact
    def folded(self) -> dict[str, ExportedProgram]:
        """What the subject's hook makes of each method. The lowering consumes it: read, do not run."""
        programs = self.original.exported()
        with stage(f"fold ({self.subject.name})", self.original.report):
            self._partitioner = self.subject.partitioner()
            hook = self._partitioner.transform_for_pre_decomposition
            folded = {name: hook(program) for name, program in programs.items()}
            self._untouched = all(folded[name] is program for name, program in programs.items())
        for name, program in folded.items():
            if not isinstance(program, ExportedProgram):
                with stage(f"fold ({self.subject.name})", self.original.report):
                    raise TypeError(
                        f"expected an ExportedProgram for method {name}, got {type(program).__name__}"
                    )
        return folded

    @artefact
    def functional(self) -> dict[str, ExportedProgram]:
        """The folded programs, functionalized where the subject has not done so."""
        folded = self.folded
        with stage(f"functionalize ({self.subject.name})", self.original.report):
            return {name: program.run_decompositions({}) for name, program in folded.items()}

    @artefact
    def structure(self) -> tuple[str, ...]:
        """The structure of what is lowered.

        A program that the subject returned as it was is looked at functionalized; what it made itself, as
        it is. At worst two programs that are partitioned alike are taken for different, and lowered twice.
        """
        folded = self.folded
        if self._untouched:
            return self.original.structure
        return tuple(graph.structure(program) for program in folded.values())

    @artefact
    def quantization_ops(self) -> Counter[str]:
        """The quantized_decomposed and torchao ops that the fold left."""
        total: Counter[str] = Counter()
        for program in self.functional.values():
            total += graph.quantization_ops(graph.ops(program))
        return total

    @property
    def mutated(self) -> Mapping[str, frozenset[str]]:
        """What each method writes, as the signature says as late as the program gets."""
        if self.lowers:
            return self.lowered.mutated
        return {name: graph.mutated(program) for name, program in self.functional.items()}

    @artefact
    def lowered(self) -> Lowered:
        """The folded programs lowered with the subject's partitioner."""
        # Looked at before lowering, which may change the programs that it is given.
        key = self.structure
        self._base.lowerings += 1
        lowered = lower(self.folded, self._partitioner, self.subject.name, self.original.report)
        # Programs of equal structure are partitioned alike, so that the twin need not be lowered again.
        self._base._partitioned[key] = Partitions(lowered.delegates, lowered.outside)
        return lowered

    @property
    def partitions(self) -> Partitions:
        """How the folded programs are partitioned."""
        return Partitions(self.lowered.delegates, self.lowered.outside)

    @artefact
    def outputs(self) -> Outputs:
        """Outputs of each call on the ExecuTorch runtime."""
        lowered = self.lowered
        # Random ops are never compared; the seed only makes a rerun of the harness the same.
        torch.manual_seed(0)
        calls, returned = self.original.calls, lowered.returned
        outputs = run(lowered, calls, self.subject.name, self.original.report)
        return [values[returned[method] :] for (method, _), values in zip(calls, outputs, strict=True)]

    @property
    def lowers(self) -> bool:
        """Whether ExecuTorch takes every op of the program."""
        return self.original.facts is None or self.original.facts.stops != "lower"

    @property
    def runs(self) -> bool:
        """Whether the runtime has a kernel for every op of the program."""
        return self.original.facts is None or not self.original.facts.stops
