# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Sound to stream: made here from formulas, and real speech where espeak-ng is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import wave
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.models import SAMPLE_RATE

SENTENCE = "A buffer keeps its place, and nothing else may lie there."
FORMANTS = (730.0, 1090.0, 2440.0)
"""Hertz; the resonances of an open vowel in a man's voice (Peterson and Barney, 1952)."""


def _time(seconds: float) -> Tensor:
    return torch.arange(round(seconds * SAMPLE_RATE), dtype=torch.float64) / SAMPLE_RATE


def silence(seconds: float) -> Tensor:
    """Samples of nothing at all."""
    return torch.zeros_like(_time(seconds))


def tone(hertz: float, seconds: float) -> Tensor:
    """A tone burst that swells and fades."""
    t = _time(seconds)
    return 0.3 * torch.sin(2 * torch.pi * hertz * t) * torch.sin(torch.pi * t / seconds)


def vowel(pitch: float, seconds: float) -> Tensor:
    """A sung vowel: the harmonics of `pitch`, louder the nearer they are to a formant."""
    t = _time(seconds)
    glide = pitch * (t + 0.05 * torch.sin(2 * torch.pi * t / seconds) / torch.pi)
    sound = torch.zeros_like(t)
    for harmonic in range(1, int(4000 / pitch)):
        hertz = harmonic * pitch
        loudness = sum(1 / (1 + ((hertz - f) / 90.0) ** 2) for f in FORMANTS)
        sound += loudness / harmonic**0.5 * torch.sin(2 * torch.pi * harmonic * glide)
    return 0.3 * sound / sound.abs().max() * torch.sin(torch.pi * t / seconds) ** 0.5


def synthesised() -> Tensor:
    """Four seconds at 16 kHz: silence, tone bursts, a vowel sung twice, silence."""
    parts = [
        silence(0.4),
        tone(440, 0.3),
        silence(0.2),
        tone(1800, 0.3),
        silence(0.3),
        vowel(120, 0.7),
        silence(0.2),
        vowel(150, 0.7),
        tone(300, 0.3),
        silence(0.6),
    ]
    return torch.cat(parts).float()


def speech() -> Tensor | None:
    """`SENTENCE` as espeak-ng reads it, at 16 kHz, or None where espeak-ng isn't installed.

    Raises:
        subprocess.CalledProcessError: espeak-ng is there and fails.
    """
    program = shutil.which("espeak-ng")
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "speech.wav")
        subprocess.run([program, "-w", str(path), SENTENCE], check=True, capture_output=True)
        with wave.open(str(path)) as file:
            rate, frames = file.getframerate(), bytearray(file.readframes(file.getnframes()))
    samples = torch.frombuffer(frames, dtype=torch.int16).float() / 2**15
    length = round(len(samples) * SAMPLE_RATE / rate)
    return torch.nn.functional.interpolate(samples[None, None], length, mode="linear")[0, 0]
