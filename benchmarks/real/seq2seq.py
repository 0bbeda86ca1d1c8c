# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""transformers' encoders with decoders, and its state-space and hybrid models."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.models.falcon_h1.modeling_falcon_h1 import (
    FalconHybridMambaAttentionDynamicCache,
)
from transformers.models.falcon_mamba.modeling_falcon_mamba import FalconMambaCache
from transformers.models.jamba.modeling_jamba import HybridMambaAttentionDynamicCache
from transformers.models.lfm2.modeling_lfm2 import Lfm2HybridConvCache
from transformers.models.mamba.modeling_mamba import MambaCache
from transformers.models.mamba2.modeling_mamba2 import Mamba2Cache

from benchmarks.models import seeded
from benchmarks.real.subject import Call, Row, Subject, session

VOCABULARY = 128
CONTEXT = 24
SOURCE = 12
"""Positions of what the encoder gives."""


def strengthened(model: Any) -> Any:
    """Weights that leave what a layer sees in its result."""
    with seeded(), torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model.eval()


# --- encoder and decoder --------------------------------------------------------------------


class EncoderDecoder(nn.Module):
    """`encode` keeps what the encoder says; `decode` takes a token over a static cache."""

    def __init__(self, model: Any, layers: int, heads: int, head_dim: int, source: int) -> None:
        super().__init__()
        self.encoder, self.decoder = model.get_encoder(), model.get_decoder()
        self.head = model.get_output_embeddings()
        width = model.config.get_text_config().hidden_size
        self.cache = StaticCache(config=model.config.get_text_config(), max_cache_len=CONTEXT)
        self.cache.early_initialization(1, heads, head_dim, torch.float32, torch.device("cpu"))
        for i in range(layers):
            self.register_buffer(f"key_cache_{i}", self.cache.layers[i].keys, persistent=False)
            self.register_buffer(f"value_cache_{i}", self.cache.layers[i].values, persistent=False)
        self.register_buffer("heard", torch.zeros(1, source, width))

    def encode(self, source: Tensor) -> Tensor:
        hidden = self.encoder(source).last_hidden_state
        self.heard.copy_(hidden)
        return hidden.mean()

    def decode(self, token: Tensor, position: Tensor) -> Tensor:
        out = self.decoder(
            input_ids=token,
            encoder_hidden_states=self.heard,
            past_key_values=EncoderDecoderCache(self.cache, DynamicCache()),
            use_cache=True,
            cache_position=position,
        )
        return self.head(out[0])


def _translated(module: nn.Module, source: Any) -> Subject:
    """Two sources, each decoded a few tokens far."""
    calls = []
    for part in range(2):
        with seeded(part):
            calls.append(Call("encode", (source(),)))
            calls += [
                Call("decode", (torch.randint(3, VOCABULARY, (1, 1)), torch.tensor([position])))
                for position in range(7)
            ]
    return Subject(module, calls, strict=True)


def _tokens() -> Tensor:
    return torch.randint(3, VOCABULARY, (1, SOURCE))


def _features() -> Tensor:
    return torch.randn(1, 16, 2 * SOURCE)


def _waveform() -> Tensor:
    return torch.randn(1, 64 * SOURCE * 6 + 127) * 0.3


def _t5() -> Subject:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
    )
    with seeded():
        model = strengthened(transformers.T5ForConditionalGeneration(config))
    return _translated(EncoderDecoder(model, 2, 4, 16, SOURCE), _tokens)


def _bart() -> Subject:
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=64,
    )
    with seeded():
        model = strengthened(transformers.BartForConditionalGeneration(config))
    return _translated(EncoderDecoder(model, 2, 4, 16, SOURCE), _tokens)


def whisper_model() -> Any:
    """A tiny Whisper with random weights."""
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=SOURCE,
        max_target_positions=CONTEXT,
        pad_token_id=2,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    with seeded():
        return strengthened(transformers.WhisperForConditionalGeneration(config))


def _whisper() -> Subject:
    return _translated(EncoderDecoder(whisper_model(), 2, 4, 16, SOURCE), _features)


def _moonshine() -> Subject:
    config = transformers.MoonshineConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        max_position_embeddings=64,
    )
    with seeded():
        model = strengthened(transformers.MoonshineForConditionalGeneration(config))
        heard = model.get_encoder()(_waveform()).last_hidden_state.shape[1]
    return _translated(EncoderDecoder(model, 2, 4, 16, heard), _waveform)


# --- state-space and hybrid models ----------------------------------------------------------


class WithState(nn.Module):
    """A model over a cache whose tensors are this module's buffers."""

    def __init__(self, model: Any, cache: Any, argument: str, *lists: str) -> None:
        super().__init__()
        self.model, self.cache, self.argument = model, cache, argument
        for name in lists:
            held = getattr(cache, name)
            values = held.items() if isinstance(held, dict) else enumerate(_listed(held))
            for i, tensor in values:
                if isinstance(tensor, Tensor) and tensor.numel():
                    self.register_buffer(f"{name}_{i}", tensor, persistent=False)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        state = {self.argument: self.cache}
        return self.model(token, use_cache=True, cache_position=position, **state).logits


def _listed(held: Any) -> list[Tensor]:
    return [held] if isinstance(held, Tensor) else list(held)


def _token(position: int) -> tuple[Tensor, Tensor]:
    # From 4 on: a convolution over the last inputs shifts, as it does from then on.
    return torch.randint(3, VOCABULARY, (1, 1)), torch.tensor([4 + position])


def _stateful(module: nn.Module) -> Subject:
    return Subject(module, session("forward", _token, 14), strict=True)


def _mamba() -> Subject:
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=2, expand=2
    )
    with seeded():
        model = strengthened(transformers.MambaForCausalLM(config))
    cache = MambaCache(config, 1, dtype=torch.float32)
    return _stateful(WithState(model, cache, "cache_params", "conv_states", "ssm_states"))


def _falcon_mamba() -> Subject:
    config = transformers.FalconMambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=2, expand=2
    )
    with seeded():
        model = strengthened(transformers.FalconMambaForCausalLM(config))
    cache = FalconMambaCache(config, 1, dtype=torch.float32)
    return _stateful(WithState(model, cache, "cache_params", "conv_states", "ssm_states"))


def _mamba2() -> Subject:
    config = transformers.Mamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=2,
        num_heads=4,
        head_dim=16,
        n_groups=1,
        chunk_size=8,
    )
    with seeded():
        model = strengthened(transformers.Mamba2ForCausalLM(config))
    cache = Mamba2Cache(config, 1, dtype=torch.float32)
    return _stateful(WithState(model, cache, "cache_params", "conv_states", "ssm_states"))


class _StaticAttention:
    """Keys and values at fixed places, for a cache whose own grow."""

    def make_static(self, layers: int, heads: int, head_dim: int) -> None:
        self.keys = [torch.zeros(1, heads, CONTEXT, head_dim) for _ in range(layers)]
        self.values = [torch.zeros(1, heads, CONTEXT, head_dim) for _ in range(layers)]
        self.has_previous_state = True

    def update(self, key: Tensor, value: Tensor, layer_idx: int, cache_kwargs: Any = None) -> Any:
        at = cache_kwargs["cache_position"]
        self.keys[layer_idx].index_copy_(2, at, key)
        self.values[layer_idx].index_copy_(2, at, value)
        return self.keys[layer_idx], self.values[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, cache_position: Tensor, layer_idx: int) -> tuple[int, int]:
        return CONTEXT, 0

    def get_max_cache_shape(self) -> int:
        return CONTEXT


class _StaticFalcon(_StaticAttention, FalconHybridMambaAttentionDynamicCache):
    pass


class _StaticJamba(_StaticAttention, HybridMambaAttentionDynamicCache):
    pass


class _StaticLfm2(_StaticAttention, Lfm2HybridConvCache):
    pass


_HYBRID = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def _falcon_h1() -> Subject:
    config = transformers.FalconH1Config(
        **_HYBRID,
        mamba_d_ssm=64,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_n_groups=1,
        mamba_chunk_size=8,
        attn_implementation="eager",
    )
    with seeded():
        model = strengthened(transformers.FalconH1ForCausalLM(config))
    cache = _StaticFalcon(config, 1, torch.float32, ["cpu", "cpu"])
    cache.make_static(2, 2, 16)
    lists = ("conv_states", "ssm_states", "keys", "values")
    return _stateful(WithState(model, cache, "past_key_values", *lists))


def _jamba() -> Subject:
    config = transformers.JambaConfig(
        **_HYBRID,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=1,
        num_experts_per_tok=1,
        mamba_d_state=8,
        mamba_dt_rank=8,
        use_mamba_kernels=False,
        attn_implementation="eager",
    )
    with seeded():
        model = strengthened(transformers.JambaForCausalLM(config))
    # Its mask for the recurrent layers is a decision on the values of the positions.
    model.model._update_mamba_mask = lambda *_: None
    cache = _StaticJamba(config, 1, torch.float32)
    cache.make_static(2, 2, 16)
    lists = ("conv_states", "ssm_states", "keys", "values")
    return _stateful(WithState(model, cache, "past_key_values", *lists))


def _lfm2() -> Subject:
    config = transformers.Lfm2Config(
        **_HYBRID, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False
    )
    with seeded():
        model = strengthened(transformers.Lfm2ForCausalLM(config))
    cache = _StaticLfm2(config, 1, torch.float32)
    cache.make_static(2, 2, 16)
    lists = ("conv_cache", "keys", "values")
    return _stateful(WithState(model, cache, "past_key_values", *lists))


ROWS = [
    Row("T5, encode, decode", "T5", _t5),
    Row("BART, encode, decode", "BART", _bart),
    Row("Whisper, encode, decode", "Whisper", _whisper),
    Row("Moonshine, encode, decode", "Moonshine", _moonshine),
    Row("Mamba", "Mamba", _mamba),
    Row("Mamba 2", "Mamba", _mamba2),
    Row("Falcon Mamba", "Mamba", _falcon_mamba),
    Row("Falcon-H1", "Falcon-H1", _falcon_h1),
    Row("Jamba", "Jamba", _jamba),
    Row("LFM2", "LFM2", _lfm2),
]
