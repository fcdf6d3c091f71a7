"""Store the weights that a program computes from its own parameters, for XNNPACK to take.

XNNPACK takes a linear or a convolution only if its weight is a stored tensor. A weight that is
computed in the graph (``weight_norm``, a LoRA merge, a transposed or sliced parameter) leaves the
op to slow portable kernels, and nothing warns.
"""

from fold.constants import Source
from fold.partitioner import FoldingXnnpackPartitioner
from fold.weight_fold import ComputedWeight, WeightFold, fold_weights

__all__ = ["ComputedWeight", "FoldingXnnpackPartitioner", "Source", "WeightFold", "fold_weights"]
