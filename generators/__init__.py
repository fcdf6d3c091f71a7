"""Programs: what they are, how they are drawn, shown as source, and what is known about them.

Read in the order of a program's life: ``program`` (the data), ``vocabulary`` (ops and layers, filled by
one module per feature family), ``validate``, ``builder`` and ``strategies`` (drawing), ``render``
(source), ``facts`` (what depends on what) and ``twin`` (the program as a perfect fold would leave it).
"""

# Each of these fills the vocabulary and the members; whoever imports the package sees them complete.
from generators import (  # noqa: F401
    blocks,
    cells,
    expressions,
    factories,
    layers,
    mutations,
    parametrizations,
    qdq,
    quantization,
    randomness,
    structure,
    tensors,
)
