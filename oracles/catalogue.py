"""All oracles by name, in the order in which they are asked: what decides at the earliest stage first."""

from __future__ import annotations

from oracles.lowers import Lowers
from oracles.mutation import Mutation
from oracles.numerics import Numerics
from oracles.oracle import Oracle
from oracles.partitions import Partitions
from oracles.quantization import Quantization

ORACLES: dict[str, Oracle] = {
    oracle.name: oracle for oracle in (Quantization(), Lowers(), Mutation(), Numerics(), Partitions())
}
