"""The fuzz targets: one for each family, and one that mixes everything.

Each is a strategy plugged into the campaign, in a fixed number of pieces that are spread over the workers.
"""

from __future__ import annotations

import pytest

from generators.strategies import FAMILIES, programs

PIECES = 2
WEIGHTS = ("tensors", "parametrizations", "expressions", "structure")
pieces = pytest.mark.parametrize("piece", range(PIECES))


@pieces
def test_everything(fuzz_with, piece):
    """Every family with every other."""
    fuzz_with(programs(FAMILIES), piece)


@pieces
def test_parametrizations(fuzz_with, piece):
    """Weights that are computed from parameters."""
    fuzz_with(programs(WEIGHTS), piece)


@pieces
def test_mutations(fuzz_with, piece):
    """In-place updates beside, and inside, computed weights."""
    fuzz_with(programs(("mutations", *WEIGHTS)), piece)


@pieces
def test_factories(fuzz_with, piece):
    """Tensors made of no data, beside and inside computed weights."""
    fuzz_with(programs(("factories", *WEIGHTS)), piece)


@pieces
def test_randomness(fuzz_with, piece):
    """Random draws beside, and inside, computed weights."""
    fuzz_with(programs(("randomness", *WEIGHTS)), piece)


@pieces
def test_quantization(fuzz_with, piece):
    """Q/DQ chains and quantization flows beside computed weights."""
    fuzz_with(programs(("quantization", *WEIGHTS)), piece)
