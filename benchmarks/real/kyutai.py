# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Kyutai's Mimi and Moshi, from the package `moshi`, over state that is in buffers."""

from __future__ import annotations

from typing import Any

import torch
from moshi.models.compression import MimiModel
from moshi.models.lm import LMModel
from moshi.modules import SEANetDecoder, SEANetEncoder, transformer
from moshi.modules.streaming import StreamingModule
from moshi.quantization import SplitResidualVectorQuantizer
from torch import Tensor, nn

from benchmarks.models import seeded
from benchmarks.real.subject import Call, Row, Subject, session

WIDTH = 32
FRAME = 64
"""Samples of a frame."""


def in_buffers(model: StreamingModule) -> None:
    """Start streaming, and make each tensor of the state a buffer of the module it belongs to.

    moshi keeps state in objects of its own, which torch.export doesn't take for state.
    """
    model.streaming_forever(1)
    for module in model.modules():
        state = getattr(module, "_streaming_state", None)
        if state is not None:
            _lend(module, state, "stream")
            cache = getattr(state, "kv_cache", None)
            if cache is not None:
                _lend(module, cache, "cache")


def _lend(owner: nn.Module, holder: Any, prefix: str) -> None:
    """Turn the tensors of `holder` into buffers of `owner`, and let it look them up there."""
    names = [name for name, value in vars(holder).items() if isinstance(value, Tensor)]
    # An execution mask says which streams of a batch go on; it doesn't change here.
    names = [name for name in names if name != "exec_mask"]
    for name in names:
        owner.register_buffer(f"{prefix}_{name}", vars(holder).pop(name))
    holder.owner = owner
    looked_up = {name: _buffer(f"{prefix}_{name}") for name in names}
    holder.__class__ = type(type(holder).__name__, (type(holder),), looked_up)


def _buffer(name: str) -> property:
    return property(
        lambda self: self.owner._buffers[name],
        lambda self, value: self.owner._buffers[name].copy_(value),
    )


def _transformer_sizes(layers: int = 2) -> dict[str, Any]:
    return {
        "d_model": WIDTH,
        "num_heads": 4,
        "num_layers": layers,
        "causal": True,
        "layer_scale": 0.5,
        "context": 16,
        "conv_layout": True,
        "max_period": 10000,
        "gating": "none",
        "norm": "layer_norm",
        "positional_embedding": "rope",
        "dim_feedforward": 2 * WIDTH,
        "input_dimension": WIDTH,
        "output_dimensions": [WIDTH],
    }


def mimi_model() -> MimiModel:
    """A small Mimi with random weights, which streams from buffers."""
    seanet = {
        "channels": 1,
        "dimension": WIDTH,
        "causal": True,
        "n_filters": 8,
        "n_residual_layers": 1,
        "activation": "ELU",
        "compress": 2,
        "dilation_base": 2,
        "disable_norm_outer_blocks": 0,
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "norm": "none",
        "pad_mode": "constant",
        "ratios": [4, 4, 2],
        "true_skip": True,
    }
    with seeded():
        encoder, decoder = SEANetEncoder(**seanet), SEANetDecoder(**seanet)
        quantizer = SplitResidualVectorQuantizer(
            dimension=16, n_q=4, bins=32, input_dimension=WIDTH, output_dimension=WIDTH
        )
        model = MimiModel(
            encoder,
            decoder,
            quantizer,
            channels=1,
            sample_rate=1600,
            frame_rate=1600 / FRAME,
            encoder_frame_rate=1600 / encoder.hop_length,
            causal=True,
            resample_method="conv",
            encoder_transformer=transformer.ProjectedTransformer(**_transformer_sizes()),
            decoder_transformer=transformer.ProjectedTransformer(**_transformer_sizes()),
        ).eval()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name.endswith("embedding_sum"):
                    buffer.normal_()
        # Codebooks make their vectors at the first use, which must not be the export.
        model.decode(torch.zeros(1, 4, 1, dtype=torch.long))
    in_buffers(model)
    return model


class Codec(nn.Module):
    """A codec that streams in both directions: a frame of samples to codes, codes to samples."""

    def __init__(self, model: MimiModel) -> None:
        super().__init__()
        self.model = model

    def encode(self, samples: Tensor) -> Tensor:
        return self.model.encode(samples)

    def decode(self, codes: Tensor) -> Tensor:
        return self.model.decode(codes)


class Latents(nn.Module):
    """The same without the quantizer."""

    def __init__(self, model: MimiModel) -> None:
        super().__init__()
        self.model = model

    def encode(self, samples: Tensor) -> Tensor:
        return self.model._encode_to_unquantized_latent(samples)

    def decode(self, codes: Tensor) -> Tensor:
        return self.model.decode(codes)


def _codec(make: type[nn.Module]) -> Subject:
    calls = []
    for number in range(8):
        with seeded(number):
            calls.append(Call("encode", (torch.randn(1, 1, FRAME),)))
            calls.append(Call("decode", (torch.randint(0, 32, (1, 4, 1)),)))
    return Subject(make(mimi_model()), calls)


class Step(nn.Module):
    """One step of Moshi's temporal transformer: what was said and heard, to the next word."""

    def __init__(self, model: LMModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, codes: Tensor) -> Tensor:
        _, words = self.model.forward_text(codes)
        return words


def _moshi() -> Subject:
    with seeded():
        model = LMModel(
            delays=[0] * 5,
            n_q=4,
            dep_q=2,
            card=32,
            text_card=48,
            dim=WIDTH,
            num_heads=4,
            num_layers=2,
            hidden_scale=2,
            causal=True,
            context=16,
            max_period=10000,
            gating="silu",
            norm="rms_norm_f32",
            positional_embedding="rope",
            depformer_dim=WIDTH,
            depformer_dim_feedforward=2 * WIDTH,
            depformer_num_heads=4,
            depformer_num_layers=1,
            depformer_multi_linear=True,
            depformer_context=2,
            depformer_gating="silu",
            depformer_pos_emb="none",
            depformer_weights_per_step=True,
            device=torch.device("cpu"),
            dtype=torch.float32,
        ).eval()
    in_buffers(model)
    calls = session("forward", lambda _: (torch.randint(0, 32, (1, 5, 1)),), 20)
    return Subject(Step(model), calls)


class Streamed(nn.Module):
    """Moshi's transformer by itself, a few positions a call."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {**_transformer_sizes(), "conv_layout": False}
        with seeded():
            self.model = transformer.ProjectedTransformer(**sizes).eval()
        in_buffers(self.model)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[0]


def _streamed() -> Subject:
    return Subject(Streamed(), session("forward", lambda _: (torch.randn(1, 2, WIDTH),)))


ROWS = [
    Row("Mimi, encode, decode", "Mimi", lambda: _codec(Codec)),
    Row("Mimi without quantizer, encode, decode", "Mimi", lambda: _codec(Latents)),
    Row("Moshi", "Moshi", _moshi),
    Row("Moshi's transformer", "Moshi", _streamed),
]
