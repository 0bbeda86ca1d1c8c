# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""transformers' language models over its static cache, built small from their configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

from benchmarks.models import seeded
from benchmarks.real.subject import Call, Row, Subject

VOCABULARY = 128
CONTEXT = 64
PROMPT = 5

SMALL: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
"""What most configurations call their sizes."""


def causal_model(kind: str, context: int = CONTEXT, attention: str = "sdpa", **sizes: Any) -> Any:
    """A causal language model with random weights.

    Args:
        kind: The name of its classes, as in `LlamaConfig` and `LlamaForCausalLM`.
        context: Positions of its static cache.
        attention: Which of transformers' implementations; not all models have all.
        sizes: More of its configuration.
    """
    configuration = getattr(transformers, f"{kind}TextConfig", None)
    configuration = configuration or getattr(transformers, f"{kind}Config")
    config = configuration(**{**SMALL, **sizes})
    config._attn_implementation = attention
    make = getattr(transformers, f"{kind}ForCausalLM", None)
    make = make or getattr(transformers, f"{kind}LMHeadModel")
    return with_cache(make, config, context)


def with_cache(make: Any, config: Any, context: int) -> Any:
    """A model that is told to generate with a static cache."""
    with seeded():
        model = make(config).eval()
        # Fresh weights are so small that what attention sees hardly matters.
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
    model.generation_config = transformers.GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        cache_config={"batch_size": 1, "max_cache_len": context},
    )
    return model


class Session(nn.Module):
    """A model's prefill and decoding over one static cache, and a way to start anew."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.language_model = TorchExportableModuleForDecoderOnlyLM(model)

    def prefill(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.language_model(input_ids=tokens, cache_position=positions)

    def decode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.language_model(input_ids=tokens, cache_position=positions)

    def reset(self) -> Tensor:
        caches = [buffer for name, buffer in self.named_buffers() if "_cache_" in name]
        for cache in caches:
            cache.zero_()
        return caches[0].sum()


def tokens(count: int, seed: int) -> Tensor:
    """Random tokens."""
    with seeded(seed):
        return torch.randint(3, VOCABULARY, (1, count))


def positions(start: int, count: int = 1) -> Tensor:
    return torch.arange(start, start + count)


def decoding(count: int = 14, method: str = "forward", start: int = 0) -> list[Call]:
    """One token a call."""
    return [
        Call(method, (tokens(1, position), positions(position)))
        for position in range(start, start + count)
    ]


class Decoder(nn.Module):
    """One token a call: `forward(tokens, positions)`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.language_model = TorchExportableModuleForDecoderOnlyLM(model)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.language_model(input_ids=tokens, cache_position=positions)


def decoder(kind: str, calls: int = 14, **sizes: Any) -> Subject:
    """One method: one token a call."""
    return Subject(Decoder(causal_model(kind, **sizes)), decoding(calls), strict=True)


def conversation(kind: str, **sizes: Any) -> Subject:
    """Three methods over one cache: prefill, decode, reset, and so again."""
    prompt = Call("prefill", (tokens(PROMPT, 100), positions(0, PROMPT)))
    again = Call("prefill", (tokens(PROMPT, 101), positions(0, PROMPT)))
    calls = [
        prompt,
        *decoding(6, "decode", PROMPT),
        Call("reset", ()),
        again,
        *decoding(6, "decode", PROMPT),
    ]
    return Subject(Session(causal_model(kind, **sizes)), calls, strict=True)


def _row(name: str, kind: str, family: str = "", **sizes: Any) -> Row:
    return Row(name, family or name.partition(" ")[0], lambda: decoder(kind, **sizes))


def _methods_row(name: str, kind: str, family: str = "", **sizes: Any) -> Row:
    full = f"{name}, prefill, decode, reset"
    return Row(full, family or name.partition(" ")[0], lambda: conversation(kind, **sizes))


WINDOW = 8
_SLIDING = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
_MEDIUM = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}
_HEADS = {"head_dim": 16}
_GEMMA = {**_HEADS, **_SLIDING, "query_pre_attn_scalar": 16}

_ALL_HEADS = {"num_key_value_heads": 4}
_GPT = {**_ALL_HEADS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}

ROWS = [
    _row("Llama", "Llama"),
    _methods_row("Llama", "Llama"),
    _row("Llama 4x768, context 1024", "Llama", context=1024, **_MEDIUM),
    _row("Llama 4x768, context 4096", "Llama", context=4096, **_MEDIUM),
    _row("Qwen2", "Qwen2", "Qwen"),
    _row("Qwen3", "Qwen3", "Qwen", **_HEADS),
    _methods_row("Qwen3", "Qwen3", "Qwen", **_HEADS),
    _row("Gemma 1", "Gemma", "Gemma", **_HEADS),
    _row("Gemma 2 sliding window", "Gemma2", "Gemma", calls=20, **_GEMMA),
    _row("Gemma 3 sliding window", "Gemma3", "Gemma", calls=20, **_GEMMA),
    _row("SmolLM3", "SmolLM3"),
    _row("Phi", "Phi"),
    _row("Phi-3", "Phi3", "Phi"),
    _row("Mistral sliding window", "Mistral", "Mistral", calls=20, sliding_window=WINDOW, **_HEADS),
    _row("OLMo 2", "Olmo2", "OLMo"),
    _row("Granite", "Granite"),
    _row("StableLM", "StableLm", "StableLM"),
    _row("Starcoder2", "Starcoder2", sliding_window=None),
    _row("Cohere", "Cohere"),
    _row("GPT-2", "GPT2", **_GPT),
    _row("GPT-NeoX", "GPTNeoX", **_ALL_HEADS),
    _methods_row("GPT-NeoX", "GPTNeoX", **_ALL_HEADS),
    _row("GPT-J", "GPTJ", rotary_dim=8, attention="eager", **_GPT),
    _row("OPT", "OPT", ffn_dim=128, word_embed_proj_dim=64, **_ALL_HEADS),
    _row("Mixtral", "Mixtral", num_local_experts=4, num_experts_per_tok=2, **_HEADS),
]
