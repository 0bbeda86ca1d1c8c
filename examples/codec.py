"""A codec that streams: `encode` a frame of samples, `decode` its codes, `reset` both.

python examples/codec.py model.pte
"""

import sys

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from torch import nn

FRAME, CODES, WIDTH = 32, 16, 8
STATE = ["left", "overlap"]


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv1d(1, WIDTH, kernel_size=16, stride=8)
        self.up = nn.ConvTranspose1d(WIDTH, 1, kernel_size=16, stride=8)
        self.codebook = nn.Embedding(CODES, WIDTH)
        self.register_buffer("left", torch.zeros(1, 1, 8))
        self.register_buffer("overlap", torch.zeros(1, 1, 8))

    def encode(self, samples):
        joined = torch.cat([self.left, samples], dim=-1)
        self.left.copy_(joined[..., -8:])
        latent = self.down(joined).transpose(1, 2)
        return (latent @ self.codebook.weight.T).argmax(-1)

    def decode(self, codes):
        made = self.up(self.codebook(codes).transpose(1, 2))
        samples = torch.cat([made[..., :8] + self.overlap, made[..., 8:-8]], dim=-1)
        self.overlap.copy_(made[..., -8:])
        return samples

    def reset(self):
        self.left.zero_()
        self.overlap.zero_()
        return self.left.sum()


def make():
    torch.manual_seed(0)
    codes = torch.randint(0, CODES, (1, FRAME // 8))
    return Codec().eval(), {
        "encode": (torch.randn(1, 1, FRAME),),
        "decode": (codes,),
        "reset": (),
    }


def lower(module, methods):
    programs = {}
    for name, inputs in methods.items():
        module.forward = getattr(module, name)
        # With gradients, a write to state is taken for a part of training.
        with torch.no_grad():
            programs[name] = torch.export.export(module, inputs)
    edge = to_edge_transform_and_lower(programs)
    # `reset` has to find the state of the other two where they keep it.
    planning = MemoryPlanningPass(share_mutable_buffers=True, shared_buffer_fqns=STATE)
    return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        lower(*make()).write_to_file(file)
