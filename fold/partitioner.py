"""The hook: an XNNPACK partitioner that folds computed weights before the program is decomposed."""

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch.export import ExportedProgram

from fold.weight_fold import WeightFold


class FoldingXnnpackPartitioner(XnnpackPartitioner):
    """Drop-in for ``XnnpackPartitioner`` that folds computed weights first.

    A variant of the fold is plugged in by a subclass that sets ``weight_fold``.
    """

    weight_fold: type[WeightFold] = WeightFold

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Return ``exported_program`` with its computed weights folded; see ``WeightFold.fold``.

        ``to_edge_transform_and_lower`` calls this once per method, on the ATen program.
        """
        return self.weight_fold(exported_program).fold()
