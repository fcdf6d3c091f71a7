"""The ops whose weight and bias XNNPACK wants stored, and where those stand in the arguments."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.fx import Node

aten = torch.ops.aten

# Source: GEMMConfig and its subclasses in the XNNPACK partitioner's config/gemm_configs.py, for the
# ops as they are before decomposition. bmm is not here: XNNPACK takes it with computed operands.
STORED_OPERANDS: dict[torch._ops.OpOverloadPacket, tuple[int, ...]] = {
    aten.linear: (1, 2),
    aten.conv1d: (1, 2),
    aten.conv2d: (1, 2),
    aten.conv3d: (1, 2),
    aten.conv_transpose1d: (1, 2),
    aten.conv_transpose2d: (1, 2),
    aten.conv_transpose3d: (1, 2),
    aten.convolution: (1, 2),
    aten.addmm: (2, 0),
    aten.mm: (1,),
    aten.matmul: (1,),
}


def stored_operands(node: Node) -> list[tuple[int, Node]]:
    """Return (argument index, value) of each weight and bias of ``node``; none if it is no GEMM.

    Export binds these arguments by position, whatever the module did.
    """
    packet: Any = getattr(node.target, "overloadpacket", None)
    indices, args = STORED_OPERANDS.get(packet, ()), cast(tuple[Any, ...], node.args)
    operands = [(i, args[i]) for i in indices if i < len(args) and isinstance(args[i], Node)]
    return operands if operands and _is_exact_when_stored(node, operands) else []


def _is_exact_when_stored(gemm: Node, operands: list[tuple[int, Node]]) -> bool:
    """Whether XNNPACK, once it takes ``gemm``, computes what ATen does.

    The partitioner of ExecuTorch 1.5.1 looks no further than whether weight and bias are stored:
    it drops ``alpha`` and ``beta`` of addmm, reads a bias as one value per output channel whatever
    its shape, and refuses at run time a linear whose weight is a vector. As long as the weight is
    computed, such an op stays outside and is right.
    """
    if getattr(gemm.target, "overloadpacket", None) not in (aten.linear, aten.addmm, aten.matmul):
        return True
    (_, weight), *biases = operands
    channels = gemm.meta["val"].shape[-1:]
    return (
        weight.meta["val"].ndim == 2
        and not gemm.kwargs
        and all(_is_one_per_channel(bias.meta["val"].shape, channels) for _, bias in biases)
    )


def _is_one_per_channel(bias: torch.Size, channels: torch.Size) -> bool:
    """Whether ``bias`` is (1, ..., 1, channels). To compare a symbolic size would specialize it."""
    known = all(isinstance(size, int) for size in (*bias, *channels))
    return known and bias[-1:] == channels and bias.numel() == channels.numel()
