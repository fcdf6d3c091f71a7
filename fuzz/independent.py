"""Independent draws for Hypothesis: every choice uniform, from one seeded generator.

Hypothesis' own provider repeats and mutates earlier draws, and mixes in constants that it finds in the
sources loaded in the process: a seed would draw other programs in another process, and half of the draws
would be near duplicates. Programs here are reduced by ``fuzz.reducer``, so that nothing is lost by it.
The interface is Hypothesis' "alternative backends".
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

NAME = "foldfuzz-independent"


class _Independent(PrimitiveProvider):
    """Draws integers and booleans, which is all that the strategies are made of."""

    lifetime: ClassVar[Literal["test_function", "test_case"]] = "test_function"
    random: ClassVar[random.Random]

    def draw_boolean(self, p: float = 0.5) -> bool:
        return self.random.random() < p

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        # Weights are Hypothesis' preference for the ends of a wide range; uniform is uniform.
        if min_value is None or max_value is None:
            raise NotImplementedError("expected an integer with two bounds")
        return self.random.randint(min_value, max_value)

    def draw_float(self, **_: Any) -> float:
        raise NotImplementedError("expected integers and booleans, got a float")

    def draw_string(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError("expected integers and booleans, got a string")

    def draw_bytes(self, *_: Any, **__: Any) -> bytes:
        raise NotImplementedError("expected integers and booleans, got bytes")


@contextmanager
def independent(seed: int) -> Iterator[str]:
    """The name of a backend for ``hypothesis.settings``, whose draws depend on ``seed`` alone."""
    AVAILABLE_PROVIDERS[NAME] = type("Seeded", (_Independent,), {"random": random.Random(seed)})
    try:
        yield NAME
    finally:
        del AVAILABLE_PROVIDERS[NAME]
