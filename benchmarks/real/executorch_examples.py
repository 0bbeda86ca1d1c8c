# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""ExecuTorch's own examples and modules, with the caches that it has for them."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from executorch.examples.models.llama import llama_transformer, model_args
from executorch.examples.models.llama.source_transformation import (
    attention_sink,
    custom_kv_cache,
    sdpa,
)
from executorch.examples.models.voxtral_realtime import model as voxtral
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401
from torch import Tensor, nn
from torchao.quantization.quantize_.workflows.nf4 import nf4_tensor

from benchmarks.models import LlamaStep, decoding_step, llama, seeded, silero_vad
from benchmarks.real.subject import Call, Row, Subject, session

VOCABULARY = 128
CONTEXT = 64
WINDOW = 8
SINK = 4
UNFILLED = ("cache_positions",)
"""What a ring buffer knows of its slots begins at -1, "nothing in there"."""


def _strong(module: nn.Module) -> nn.Module:
    """Weights that leave what attention sees in the result."""
    with seeded(), torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return module


def _transformer(**args: Any) -> Any:
    """The llama example; returns it wrapped, so that options are plain tensors."""
    return _strong(llama(2, context=CONTEXT, vocabulary=VOCABULARY, **args))


def steps(count: int) -> list[Call]:
    """One token a call."""
    with seeded():
        tokens = torch.randint(0, VOCABULARY, (count,))
    return [
        Call("forward", (tokens[position].reshape(1, 1), torch.tensor([position])))
        for position in range(count)
    ]


def _decode(**args: Any) -> Subject:
    return Subject(_transformer(**args), steps(14))


def _ring(*, custom: bool = False, quantized: bool = False, **args: Any) -> Subject:
    """A sliding window in a ring buffer, past the end of which the session runs."""
    model = _transformer(**args)
    if custom:
        _use_custom_operators(model.transformer, quantized=quantized)
    custom_kv_cache.replace_kv_cache_with_ring_kv_cache(model.transformer, [WINDOW, WINDOW])
    return Subject(model, steps(3 * WINDOW))


def _use_custom_operators(transformer: nn.Module, *, quantized: bool = False) -> None:
    # Attention first: a cache with a window tells it to expect a mask.
    sdpa.replace_sdpa_with_custom_op(transformer)
    if quantized:
        custom_kv_cache.replace_kv_cache_with_quantized_kv_cache(transformer)
    else:
        custom_kv_cache.replace_kv_cache_with_custom_kv_cache(transformer)


def _custom(*, quantized: bool = False) -> Subject:
    """ExecuTorch's own operators for the cache and for attention."""
    model = _transformer()
    _use_custom_operators(model.transformer, quantized=quantized)
    return Subject(model, steps(14))


def _sink(*, custom: bool = False) -> Subject:
    """The first tokens are kept beside a sliding window, in a ring buffer."""
    args = model_args.ModelArgs(
        dim=64,
        n_layers=2,
        n_heads=4,
        vocab_size=VOCABULARY,
        max_seq_len=CONTEXT,
        max_context_len=CONTEXT,
        use_kv_cache=True,
        enable_dynamic_shape=True,
    )
    with seeded():
        transformer = llama_transformer.construct_transformer(args).eval()
    attention_sink.enable_attention_sink(
        transformer, params=args, sink_size=SINK, window_size=WINDOW
    )
    if custom:
        _use_custom_operators(transformer)
    return Subject(_strong(LlamaStep(transformer)), steps(3 * WINDOW), initialized=UNFILLED)


class Conversation(nn.Module):
    """The llama example's prefill and decoding over one cache, and a way to start anew."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.step = step

    def prefill(self, tokens: Tensor, input_pos: Tensor) -> Tensor:
        return self.step(tokens, input_pos)

    def decode(self, tokens: Tensor, input_pos: Tensor) -> Tensor:
        return self.step(tokens, input_pos)

    def reset(self) -> Tensor:
        caches = [buffer for name, buffer in self.named_buffers() if "_cache" in name]
        for cache in caches:
            cache.zero_()
        return caches[0].sum()


def _conversation(**args: Any) -> Subject:
    prompt = 5
    with seeded():
        tokens = torch.randint(0, VOCABULARY, (1, CONTEXT))

    def half(start: int) -> list[Call]:
        first = tokens[:, start : start + prompt]
        more = [
            Call("decode", (tokens[:, start + at : start + at + 1], torch.tensor([at])))
            for at in range(prompt, prompt + 6)
        ]
        return [Call("prefill", (first, torch.arange(prompt))), *more]

    calls = [*half(0), Call("reset", ()), *half(20)]
    return Subject(Conversation(_transformer(**args)), calls)


# --- Voxtral --------------------------------------------------------------------------------


def _voxtral_config(backend: str) -> Any:
    return voxtral.VoxtralRealtimeConfig(
        dim=64,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        head_dim=16,
        hidden_dim=128,
        vocab_size=VOCABULARY,
        ada_rms_norm_t_cond_dim=8,
        enc_dim=64,
        enc_n_layers=2,
        enc_n_heads=4,
        enc_head_dim=16,
        enc_hidden_dim=128,
        num_mel_bins=16,
        sliding_window=WINDOW,
        streaming=True,
        backend=backend,
    )


def _voxtral_decoder(backend: str) -> Subject:
    """The text decoder of a streaming transcriber: a sliding window in a ring buffer."""
    with seeded():
        module = _strong(voxtral.MistralDecoder(_voxtral_config(backend)).eval())

    def make(position: int) -> tuple[Tensor, ...]:
        return torch.randn(1, 1, 64), torch.tensor([position]), torch.ones(1, 64)

    return Subject(module, session("forward", make, 3 * WINDOW))


def _voxtral_encoder(backend: str) -> Subject:
    """The streaming encoder: convolutions with a left context, and ring buffers."""
    with seeded():
        model = _strong(voxtral.VoxtralRealtimeModel(_voxtral_config(backend)).eval())
        module = voxtral.StreamingAudioEncoderExport(model, max_enc_len=WINDOW)

    def make(number: int) -> tuple[Tensor, ...]:
        return torch.randn(1, 16, 8), torch.arange(4 * number, 4 * number + 4)

    return Subject(module.eval(), session("forward", make))


# --- its module of multi-head attention -----------------------------------------------------


class _Absent(ModuleType):
    """Stands for a package of which nothing is used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def _let_torchtune_import() -> None:
    """ExecuTorch's module is built on torchtune's, which imports much that it doesn't need."""
    # It asks torchao for a type at the place where that was.
    sys.modules.setdefault("torchao.dtypes.nf4tensor", nf4_tensor)
    for name in ("datasets", "datasets.distributed", "kagglehub", "kagglehub.auth", "blobfile"):
        if name not in sys.modules:
            try:
                import_module(name)
            except ImportError:
                sys.modules[name] = _Absent(name)


class CrossAttention(nn.Module):
    """ExecuTorch's `MultiHeadAttention` with a cache: `torch.cond` fills it from what is given,
    or reads what was given before."""

    def __init__(self) -> None:
        super().__init__()
        _let_torchtune_import()
        attention = import_module("executorch.extension.llm.modules.attention")
        cache = import_module("executorch.extension.llm.modules.kv_cache")
        dim, heads, kv_heads, head = 64, 4, 2, 16
        self.attention = attention.MultiHeadAttention(
            embed_dim=dim,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head,
            q_proj=nn.Linear(dim, heads * head, bias=False),
            k_proj=nn.Linear(dim, kv_heads * head, bias=False),
            v_proj=nn.Linear(dim, kv_heads * head, bias=False),
            output_proj=nn.Linear(heads * head, dim, bias=False),
            kv_cache=cache.KVCache(
                batch_size=1,
                max_seq_len=WINDOW,
                num_kv_heads=kv_heads,
                head_dim=head,
                dtype=torch.float32,
                transpose_cache=False,
            ),
            is_causal=False,
            max_seq_len=WINDOW,
        )
        self.attention.cache_enabled = True

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        return self.attention(x, given)


def _cross_attention() -> Subject:
    with seeded():
        module = CrossAttention().eval()

    def make(number: int) -> tuple[Tensor, ...]:
        x, given = torch.randn(1, 1, 64), torch.randn(1, WINDOW, 64)
        # What isn't a number means: nothing new, read the cache.
        return x, given if number == 0 else torch.full_like(given, float("nan"))

    return Subject(module, session("forward", make), initialized=("kv_cache_pos",))


def _silero() -> Subject:
    return Subject(silero_vad(), session("forward", lambda _: (torch.randn(1, 512) * 0.3,)))


def _medium(context: int) -> Subject:
    sizes = {"dim": 768, "heads": 12, "context": context, "vocabulary": 1024}
    module = _strong(llama(4, **sizes))
    calls = [Call("forward", decoding_step(number)) for number in range(12)]
    return Subject(module, calls)


_LINEAR = {"layer_types": ["linear_attention"] * 2}
_CONVOLUTION = {"layer_types": ["conv", "full_attention"], "hidden_dim": 256}

ROWS = [
    Row("llama example", "ExecuTorch llama", _decode),
    Row("llama example, prefill, decode, reset", "ExecuTorch llama", _conversation),
    Row(
        "llama example, dynamic shape",
        "ExecuTorch llama",
        lambda: _decode(enable_dynamic_shape=True),
    ),
    Row("llama example 4x768, context 1024", "ExecuTorch llama", lambda: _medium(1024)),
    Row("llama example 4x768, context 4096", "ExecuTorch llama", lambda: _medium(4096)),
    Row("llama example, ring buffer", "ExecuTorch caches", _ring),
    Row(
        "llama example, ring buffer, dynamic shape",
        "ExecuTorch caches",
        lambda: _ring(enable_dynamic_shape=True),
    ),
    Row("llama example, attention sink", "ExecuTorch caches", _sink),
    Row("llama example, custom cache", "ExecuTorch caches", _custom),
    Row("llama example, custom ring buffer", "ExecuTorch caches", lambda: _ring(custom=True)),
    Row("llama example, custom attention sink", "ExecuTorch caches", lambda: _sink(custom=True)),
    Row("llama example, quantized cache", "ExecuTorch caches", lambda: _custom(quantized=True)),
    Row(
        "llama example, quantized ring buffer",
        "ExecuTorch caches",
        lambda: _ring(custom=True, quantized=True),
    ),
    Row("llama example, YOCO", "ExecuTorch caches", lambda: _decode(num_kv_shared_layers=1)),
    Row("gated delta net", "Qwen", lambda: _decode(**_LINEAR)),
    Row("LFM2 short convolution", "LFM2", lambda: _decode(**_CONVOLUTION)),
    Row("MultiHeadAttention with cond", "ExecuTorch modules", _cross_attention),
    Row("Voxtral decoder", "Voxtral", lambda: _voxtral_decoder("xnnpack")),
    Row("Voxtral decoder, plain operators", "Voxtral", lambda: _voxtral_decoder("cuda")),
    Row("Voxtral encoder", "Voxtral", lambda: _voxtral_encoder("xnnpack")),
    Row("Voxtral encoder, plain operators", "Voxtral", lambda: _voxtral_encoder("cuda")),
    Row("Silero VAD, real weights", "Silero VAD", _silero),
]
