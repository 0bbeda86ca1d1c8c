"""Whisper: `encode` keeps what was heard, `decode` says a token over a static cache.

    python examples/whisper.py model.pte

Needs transformers, with `make models` in .cache/models-packages. With real weights:
`WhisperForConditionalGeneration.from_pretrained(...)` in the place of the one that is made here.
"""

import sys

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache


class Transcriber(nn.Module):
    def __init__(self, model, context):
        super().__init__()
        self.encoder, self.decoder = model.get_encoder(), model.get_decoder()
        self.head = model.get_output_embeddings()
        config = model.config
        heads = config.decoder_attention_heads
        self.cache = StaticCache(config=config, max_cache_len=context)
        self.cache.early_initialization(
            1, heads, config.d_model // heads, torch.float32, torch.device("cpu")
        )
        for i, layer in enumerate(self.cache.layers):
            self.register_buffer(f"keys_{i}", layer.keys)
            self.register_buffer(f"values_{i}", layer.values)
        self.register_buffer("heard", torch.zeros(1, config.max_source_positions, config.d_model))

    def encode(self, features):
        self.heard.copy_(self.encoder(features).last_hidden_state)
        return self.heard.mean()

    def decode(self, token, position):
        hidden = self.decoder(
            input_ids=token,
            encoder_hidden_states=self.heard,
            past_key_values=EncoderDecoderCache(self.cache, DynamicCache()),
            use_cache=True,
            cache_position=position,
        )
        return self.head(hidden[0])


def make():
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=64,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=10,
        max_target_positions=16,
        pad_token_id=2,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    features = (torch.randn(1, 8, 20),)
    token = (torch.tensor([[7]]), torch.tensor([0]))
    module = Transcriber(WhisperForConditionalGeneration(config).eval(), context=16)
    return module, {"encode": features, "decode": token}


def lower(module, methods):
    programs = {}
    for name, inputs in methods.items():
        module.forward = getattr(module, name)
        programs[name] = torch.export.export(module, inputs, strict=True)
    edge = to_edge_transform_and_lower(programs)
    # `encode` writes what was heard and `decode` reads it: one place in both.
    planning = MemoryPlanningPass(share_mutable_buffers=True, shared_buffer_fqns=["heard"])
    return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        lower(*make()).write_to_file(file)
