# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Stateful models that others designed, each with example inputs and how to lower it.

Most are ExecuTorch's own examples; the others are plain stacks of `torch.nn` layers that keep
their state in buffers from call to call. Weights are random, from a fixed seed; Silero VAD's are
the real ones. All buffers start at zero, as they do in the runtime.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from executorch.examples.models.llama.llama_transformer import construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs
from executorch.examples.models.silero_vad.export_silero_vad import load_model
from torch import Tensor, nn

from benchmarks.step_results import STEP_MODELS
from tools.paths import ROOT

SEED = 0

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Lowering:
    """How a model is brought to ExecuTorch."""

    reinplace: bool = False
    """Run the reinplace pass, so that caches are written where they stand."""
    xnnpack: bool = False
    """Delegate to XNNPACK what it takes."""


@dataclass(frozen=True)
class Model:
    """One method of one model, ready to export."""

    module: nn.Module
    call: Callable[[int], Inputs]
    """The inputs of the n-th call of a session, from 0 on."""
    lowering: Lowering = Lowering()

    @property
    def inputs(self) -> Inputs:
        """Example inputs."""
        return self.call(0)


@contextlib.contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """Draw random numbers from `seed` here, and leave the generator outside as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def noise(*shape: int) -> Callable[[int], Inputs]:
    """Calls that take one tensor of random numbers, other ones each time."""

    def call(number: int) -> Inputs:
        with seeded(number):
            return (torch.randn(*shape),)

    return call


# --- ExecuTorch's llama example -------------------------------------------------------------


class LlamaStep(nn.Module):
    """The llama example with its options as plain tensors: `forward(tokens, input_pos)`.

    Tokens have the shape [1, length], `input_pos` the shape [length]; the logits of the last
    token come back.
    """

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, tokens: Tensor, input_pos: Tensor) -> Tensor:
        return self.transformer(tokens, {"input_pos": input_pos})


def llama(
    layers: int,
    *,
    dim: int = 64,
    heads: int = 4,
    context: int = 256,
    vocabulary: int = 128,
    **args: Any,
) -> LlamaStep:
    """ExecuTorch's llama example with a key/value cache and random weights.

    Args:
        layers: Number of transformer blocks.
        dim: Width of the model; the cache of a layer is 2 * context * dim floats.
        heads: Attention heads, each with its own keys and values.
        context: Tokens that the cache holds.
        vocabulary: Size of the vocabulary.
        args: More of the example's `ModelArgs`.
    """
    model_args = ModelArgs(
        dim=dim,
        n_layers=layers,
        n_heads=heads,
        vocab_size=vocabulary,
        max_seq_len=context,
        max_context_len=context,
        use_kv_cache=True,
        **args,
    )
    with seeded():
        return LlamaStep(construct_transformer(model_args).eval())


def decoding_step(number: int) -> Inputs:
    """One token, at the position that is its turn."""
    return torch.tensor([[number + 1]]), torch.tensor([number])


def _llama_decode(layers: int, lowering: Lowering = Lowering(), **args: Any) -> Model:
    return Model(llama(layers, **args), decoding_step, lowering)


def _llama_step(context: int) -> Model:
    """Two layers, whose step takes the time of the caches and of the attention to them."""
    shape = {**WIDE, "context": context}
    return _llama_decode(2, Lowering(xnnpack=True), **shape)


def use_custom_cache(model: Model) -> None:
    """Have a llama write its caches by ExecuTorch's own operator for that, `llama::update_cache`,
    in place of plain indexing. Importing it registers the operator in the runtime, too."""
    importlib.import_module("executorch.extension.llm.custom_ops.custom_ops")
    source = "executorch.examples.models.llama.source_transformation.custom_kv_cache"
    importlib.import_module(source).replace_kv_cache_with_custom_kv_cache(model.module)


def _gated_delta_net() -> Model:
    """Four blocks whose attention is the example's gated delta net: a recurrent matrix for
    each head and the last inputs of a short convolution."""
    return Model(llama(4, layer_types=["linear_attention"] * 4), decoding_step)


def _short_convolution() -> Model:
    """LFM2's mixture: short convolutions, and attention in every third block."""
    kinds = ["conv", "conv", "full_attention"] * 2
    return Model(llama(6, layer_types=kinds, hidden_dim=256), decoding_step)


# --- Silero VAD -----------------------------------------------------------------------------

SAMPLE_RATE = 16_000
CHUNK = 512
"""Samples that Silero VAD takes at a time, at 16 kHz."""
CONTEXT = 64
"""Samples of the chunk before that it sees again."""


class StreamingVad(nn.Module):
    """Silero VAD that keeps its own state: `forward(chunk)` takes a [1, 512] chunk of samples
    and returns the [1, 1] probability that it is speech."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("state", torch.zeros(2, 1, 128))
        self.register_buffer("context", torch.zeros(1, CONTEXT))

    def forward(self, chunk: Tensor) -> Tensor:
        probability, state = self.network(torch.cat([self.context, chunk], dim=1), self.state)
        self.state.copy_(state)
        self.context.copy_(chunk[:, -CONTEXT:])
        return probability


def silero_weights() -> Path:
    """The TorchScript file of the PyPI package `silero-vad`: from the checkout's cache, or from
    the package if that is installed.

    Raises:
        FileNotFoundError: Neither has it.
    """
    # Importing the package would pull in audio libraries that nothing here needs.
    spec = importlib.util.find_spec("silero_vad")
    installed = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for place in [*sorted(ROOT.glob(".cache/silero-vad-*/silero_vad")), *installed]:
        path = place / "data" / "silero_vad.jit"
        if path.is_file():
            return path
    raise FileNotFoundError(
        "silero_vad.jit not found: `make demo` fetches it, as does "
        "`pip install --no-deps --target .cache/silero-vad-6.2.3 silero-vad==6.2.3`"
    )


def silero_vad() -> StreamingVad:
    """ExecuTorch's eager Silero VAD with the real weights, made to keep its own state."""
    # The example compares itself with the original on random samples, and prints the outcome.
    with seeded(), contextlib.redirect_stdout(sys.stderr):
        return StreamingVad(load_model(str(silero_weights()))).eval()


def _silero_vad() -> Model:
    return Model(silero_vad(), noise(1, CHUNK))


# --- recurrent cells and causal convolutions ------------------------------------------------


class GruStack(nn.Module):
    """Layers of `nn.GRUCell`, the hidden state of each in a buffer."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(width, width) for _ in range(layers))
        for i in range(layers):
            self.register_buffer(f"hidden{i}", torch.zeros(1, width))

    def forward(self, x: Tensor) -> Tensor:
        for i, cell in enumerate(self.cells):
            hidden = self.get_buffer(f"hidden{i}")
            x = cell(x, hidden)
            hidden.copy_(x)
        return x


class LstmStack(nn.Module):
    """Layers of `nn.LSTMCell`, the hidden and the cell state of each in buffers."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))
        for i in range(layers):
            self.register_buffer(f"hidden{i}", torch.zeros(1, width))
            self.register_buffer(f"cell{i}", torch.zeros(1, width))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.cells):
            hidden, cell = self.get_buffer(f"hidden{i}"), self.get_buffer(f"cell{i}")
            x, new_cell = layer(x, (hidden, cell))
            hidden.copy_(x)
            cell.copy_(new_cell)
        return x


class StreamingConvolutions(nn.Module):
    """A temporal convolution network over a stream: causal convolutions whose dilation doubles
    from layer to layer, the left context of each in a buffer, a residual around each."""

    def __init__(self, layers: int, channels: int, kernel: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=2**i) for i in range(layers)
        )
        for i in range(layers):
            self.register_buffer(f"left{i}", torch.zeros(1, channels, (kernel - 1) * 2**i))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            left = self.get_buffer(f"left{i}")
            padded = torch.cat([left, x], dim=2)
            left.copy_(padded[:, :, -left.shape[2] :])
            x = x + torch.relu(layer(padded))
        return x


def _gru_stack(lowering: Lowering = Lowering()) -> Model:
    with seeded():
        return Model(GruStack(4, 128).eval(), noise(1, 128), lowering)


def _lstm_stack(lowering: Lowering = Lowering()) -> Model:
    with seeded():
        return Model(LstmStack(4, 128).eval(), noise(1, 128), lowering)


def _streaming_convolutions(lowering: Lowering = Lowering()) -> Model:
    with seeded():
        return Model(StreamingConvolutions(4, 32, 3).eval(), noise(1, 32, 16), lowering)


# --- a decoder like Whisper's ---------------------------------------------------------------


class DecoderBlock(nn.Module):
    """Attention to all that was decoded, whose keys and values are kept, attention to the audio,
    whose keys and values are given, and a feed-forward network."""

    def __init__(self, width: int, heads: int, context: int, audio: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.cross_query, self.cross_out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        shape = (1, heads, context, width // heads)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))
        heard = (1, heads, audio, width // heads)
        self.register_buffer("audio_keys", torch.randn(heard))
        self.register_buffer("audio_values", torch.randn(heard))

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        normed = self.norms[0](x)
        self.keys[:, :, position] = self._split(self.key(normed))
        self.values[:, :, position] = self._split(self.value(normed))
        x = x + self.out(self._attend(self.query(normed), self.keys, self.values, mask))
        query = self.cross_query(self.norms[1](x))
        x = x + self.cross_out(self._attend(query, self.audio_keys, self.audio_values, None))
        return x + self.down(nn.functional.gelu(self.up(self.norms[2](x))))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        attended = nn.functional.scaled_dot_product_attention(
            self._split(query), keys, values, attn_mask=mask
        )
        return attended.transpose(1, 2).flatten(2)


class WhisperLikeDecoder(nn.Module):
    """A stack of decoder blocks of the tiny Whisper's dimensions: `forward(tokens, position)` takes
    one token and returns the logits of the next."""

    def __init__(self, layers: int, width: int, heads: int, context: int, audio: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            DecoderBlock(width, heads, context, audio) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        # Whisper begins with such small ones; large ones blur the logits.
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.register_buffer("order", torch.arange(context))

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(position)
        mask = (self.order <= position).reshape(1, 1, 1, -1)
        for block in self.blocks:
            x = block(x, position, mask)
        return self.norm(x) @ self.tokens.weight.t()


def _whisper_like(lowering: Lowering = Lowering()) -> Model:
    with seeded():
        return Model(WhisperLikeDecoder(4, 384, 6, 448, 1500).eval(), decoding_step, lowering)


# --- the list -------------------------------------------------------------------------------

_REINPLACE = Lowering(reinplace=True)
_XNNPACK = Lowering(xnnpack=True)

MODELS: dict[str, Callable[[], Model]] = {
    "llama 4": lambda: _llama_decode(4),
    "llama 4, reinplace": lambda: _llama_decode(4, _REINPLACE),
    "llama 4, dynamic shape, reinplace": lambda: _llama_decode(
        4, _REINPLACE, enable_dynamic_shape=True
    ),
    "llama 4, XNNPACK": lambda: _llama_decode(4, _XNNPACK),
    "llama 16": lambda: _llama_decode(16),
    "llama 16, reinplace": lambda: _llama_decode(16, _REINPLACE),
    "llama 16, XNNPACK": lambda: _llama_decode(16, _XNNPACK),
    "llama 12x768": lambda: _llama_decode(12, **WIDE),
    "llama 12x768, reinplace": lambda: _llama_decode(12, _REINPLACE, **WIDE),
    "llama 12x768, XNNPACK": lambda: _llama_decode(12, _XNNPACK, **WIDE),
    "gated delta net": _gated_delta_net,
    "LFM2 short convolution": _short_convolution,
    "Silero VAD": _silero_vad,
    "GRU stack": _gru_stack,
    "LSTM stack": _lstm_stack,
    "streaming convolutions": _streaming_convolutions,
    "GRU stack, XNNPACK": lambda: _gru_stack(_XNNPACK),
    "LSTM stack, XNNPACK": lambda: _lstm_stack(_XNNPACK),
    "streaming convolutions, XNNPACK": lambda: _streaming_convolutions(_XNNPACK),
    "Whisper-like decoder": _whisper_like,
    "Whisper-like decoder, XNNPACK": lambda: _whisper_like(_XNNPACK),
    **{name: functools.partial(_llama_step, context) for name, context in STEP_MODELS.items()},
}
"""Name to a function that builds the model."""

WIDE: dict[str, int] = {"dim": 768, "heads": 12, "context": 1024}
"""Dimensions of the 12x768 llama."""
