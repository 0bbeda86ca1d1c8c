"""A language model of transformers: prefill and decode over one static cache.

    python examples/transformers_cache.py model.pte

Needs transformers, with `make models` in .cache/models-packages. A model of your own:
`AutoModelForCausalLM.from_pretrained(...)` in the place of the one that is made here.
"""

import sys

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM


class LanguageModel(nn.Module):
    def __init__(self, model, context):
        super().__init__()
        model.generation_config = GenerationConfig(
            use_cache=True,
            cache_implementation="static",
            cache_config={"batch_size": 1, "max_cache_len": context},
        )
        self.model = TorchExportableModuleForDecoderOnlyLM(model)

    def prefill(self, tokens, positions):
        return self.model(input_ids=tokens, cache_position=positions)

    def decode(self, token, position):
        return self.model(input_ids=token, cache_position=position)


def make():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    prompt = (torch.tensor([[5, 3, 8, 1]]), torch.arange(4))
    token = (torch.tensor([[7]]), torch.tensor([4]))
    module = LanguageModel(LlamaForCausalLM(config).eval(), context=32)
    return module, {"prefill": prompt, "decode": token}


def lower(module, methods):
    programs = {}
    for name, inputs in methods.items():
        module.forward = getattr(module, name)
        # The caches of transformers export with strict=True only.
        programs[name] = torch.export.export(module, inputs, strict=True)
    edge = to_edge_transform_and_lower(programs)
    # The names are the signature's: those of named_buffers() may be others.
    signature = edge.exported_program("decode").graph_signature
    caches = sorted(signature.buffers_to_mutate.values())
    planning = MemoryPlanningPass(share_mutable_buffers=True, shared_buffer_fqns=caches)
    return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        lower(*make()).write_to_file(file)
