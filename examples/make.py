"""Builds ``.pt2`` files to try ``foldfuzz check`` on: ``python examples/make.py [FOLDER]``.

- ``wav2vec2_conv.pt2``: the positional convolution of wav2vec2-large (Baevski et al., 2020), a grouped
  convolution with a kernel of 128 under ``weight_norm``.
- ``vocoder.pt2``: a small HiFi-GAN-style vocoder (Kong et al., 2020): transposed convolutions and stacks of
  dilated residual blocks, ``weight_norm`` on every convolution.

Weights are random: what is lowered depends on the structure alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class ResidualBlock(nn.Module):
    """Two dilated convolutions, each added to its input. Input and output: [N, channels, length]."""

    def __init__(self, channels: int, kernel: int = 3) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2))
            for d in (1, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = x + conv(torch.nn.functional.leaky_relu(x, 0.1))
        return x


class Vocoder(nn.Module):
    """Mel spectrogram [N, 20, frames] to waveform [N, 1, 4 * frames], upsampling twice by 2."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(20, channels, 7, padding=3))
        self.stages = nn.ModuleList()
        for _ in range(2):
            up = weight_norm(nn.ConvTranspose1d(channels, channels // 2, 4, stride=2, padding=1))
            channels //= 2
            self.stages.append(nn.Sequential(nn.LeakyReLU(0.1), up, ResidualBlock(channels)))
        self.last = weight_norm(nn.Conv1d(channels, 1, 7, padding=3))

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x = self.first(mel)
        for stage in self.stages:
            x = stage(x)
        return torch.tanh(self.last(x))


def wav2vec2_conv() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The convolution and an input of 499 frames, which is 10 seconds of speech."""
    conv = nn.Conv1d(1024, 1024, kernel_size=128, padding=64, groups=16)
    return weight_norm(conv), (torch.randn(1, 1024, 499),)


def vocoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The vocoder and 50 frames of 20 mel bands."""
    return Vocoder(), (torch.randn(1, 20, 50),)


def main(folder: Path) -> None:
    """Writes the programs into ``folder``."""
    for make in (wav2vec2_conv, vocoder):
        torch.manual_seed(0)
        model, inputs = make()
        path = folder / f"{make.__name__}.pt2"
        torch.export.save(torch.export.export(model.eval(), inputs), path)
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
