"""Which tensor's memory a value lives in: the one rule of aliasing that ``validate`` and ``facts`` share."""

from __future__ import annotations

from collections.abc import Iterable

from generators.program import Program, Step
from generators.vocabulary import OPS, Effect

WRITES = (Effect.WRITE, Effect.OVERWRITE)
ALIASES = (Effect.VIEW, Effect.MAYBE_VIEW, *WRITES)


class Storages:
    """The storage of every value of one method, step by step.

    A storage is named by the value that allocated it: an owned tensor, an input, or the first result of a
    step. All results of a step that makes views (``chunk``) live in the storage of its argument.
    """

    def __init__(self, program: Program, names: Iterable[str]) -> None:
        self._root = {name: name for name in names}
        self._root |= {tensor.name: canonical(program, tensor.name) for tensor in program.tensors}
        self.maybe_viewed: set[str] = set()

    def of(self, name: str) -> str:
        """The storage that value ``name`` lives in."""
        return self._root[name]

    def apply(self, step: Step) -> None:
        """Records the results of ``step``."""
        effect = OPS[step.op].effect
        for out in step.outs:
            self._root[out] = self._root[step.args[0]] if effect in ALIASES else out
        if effect is Effect.MAYBE_VIEW:
            self.maybe_viewed.add(self._root[step.args[0]])


def canonical(program: Program, name: str) -> str:
    """The tensor that ``name`` is another name of, or ``name`` itself."""
    return next((tensor.tied or name for tensor in program.tensors if tensor.name == name), name)
