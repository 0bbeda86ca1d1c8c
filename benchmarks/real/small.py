# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Models in a few lines each: audio, recurrent networks, filters, memories, training."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models import GruStack, LstmStack, StreamingConvolutions, seeded
from benchmarks.real.subject import Call, Inputs, Row, Subject, session

# --- speech ---------------------------------------------------------------------------------


class RnnT(nn.Module):
    """A transducer that streams: an encoder that attends to a memory of the last segments, as
    Emformer's does, a recurrent predictor and a joiner."""

    def __init__(self, width: int = 48, segment: int = 4, memory: int = 12) -> None:
        super().__init__()
        self.segment = segment
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.project = nn.Linear(20, width)
        self.embedding = nn.Embedding(30, width)
        self.predictor = nn.LSTMCell(width, width)
        self.joiner = nn.Linear(width, 30)
        self.register_buffer("memory", torch.zeros(1, memory, width))
        self.register_buffer("hidden", torch.zeros(1, width))
        self.register_buffer("cell", torch.zeros(1, width))

    def encode(self, features: Tensor) -> Tensor:
        x = self.project(features)
        seen = torch.cat([self.memory, x], dim=1)
        attended, _ = self.attention(x, seen, seen, need_weights=False)
        self.memory.copy_(seen[:, self.segment :])
        return x + attended

    def predict(self, token: Tensor) -> Tensor:
        hidden, cell = self.predictor(self.embedding(token), (self.hidden, self.cell))
        self.hidden.copy_(hidden)
        self.cell.copy_(cell)
        return hidden

    def join(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        return self.joiner(torch.tanh(encoded + predicted))

    def reset(self) -> Tensor:
        for buffer in (self.memory, self.hidden, self.cell):
            buffer.zero_()
        return self.hidden.sum()


def _rnn_t() -> Subject:
    with seeded():
        module = RnnT().eval()
    calls = []
    for number in range(6):
        with seeded(number):
            calls += [
                Call("encode", (torch.randn(1, 4, 20),)),
                Call("predict", (torch.randint(0, 30, (1,)),)),
                Call("join", (torch.randn(1, 48), torch.randn(1, 48))),
            ]
        if number == 2:
            calls.append(Call("reset", ()))
    return Subject(module, calls)


class Demucs(nn.Module):
    """A denoiser in the form of Demucs: strided convolutions down, a recurrent layer, transposed
    convolutions up with skips. Its left contexts and its overlaps are kept from call to call."""

    def __init__(self, channels: int = 16, depth: int = 2, kernel: int = 8, stride: int = 4):
        super().__init__()
        self.kernel, self.stride, self.depth = kernel, stride, depth
        widths = [1, *(channels * 2**i for i in range(depth))]
        self.down = nn.ModuleList(
            nn.Conv1d(a, b, kernel, stride) for a, b in itertools.pairwise(widths)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(b, a, kernel, stride) for a, b in itertools.pairwise(widths)
        )
        self.cell = nn.LSTMCell(widths[-1], widths[-1])
        for i in range(depth):
            self.register_buffer(f"left{i}", torch.zeros(1, widths[i], kernel - stride))
            self.register_buffer(f"overlap{i}", torch.zeros(1, widths[i], kernel - stride))
        self.register_buffer("hidden", torch.zeros(1, widths[-1]))
        self.register_buffer("memory", torch.zeros(1, widths[-1]))

    def forward(self, samples: Tensor) -> Tensor:
        x, skips = samples, []
        for i, layer in enumerate(self.down):
            left = self.get_buffer(f"left{i}")
            joined = torch.cat([left, x], dim=-1)
            left.copy_(joined[..., -left.shape[-1] :])
            x = torch.relu(layer(joined))
            skips.append(x)
        steps = []
        for step in x.unbind(-1):
            hidden, memory = self.cell(step, (self.hidden, self.memory))
            self.hidden.copy_(hidden)
            self.memory.copy_(memory)
            steps.append(hidden)
        x = torch.stack(steps, dim=-1)
        for i in reversed(range(self.depth)):
            overlap = self.get_buffer(f"overlap{i}")
            made = self.up[i](x + skips[i])
            kept = overlap.shape[-1]
            x = torch.cat([made[..., :kept] + overlap, made[..., kept:-kept]], dim=-1)
            overlap.copy_(made[..., -kept:])
        return x


def _demucs() -> Subject:
    with seeded():
        module = Demucs().eval()
    return Subject(module, session("forward", lambda _: (torch.randn(1, 1, 64),)))


class WaveNet(nn.Module):
    """One sample a call; each layer reads what it saw a power of two calls ago from a queue."""

    def __init__(self, layers: int = 4, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(1, channels)
        self.gates = nn.ModuleList(nn.Linear(2 * channels, 2 * channels) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(channels, channels) for _ in range(layers))
        self.last = nn.Linear(channels, 1)
        for i in range(layers):
            self.register_buffer(f"queue{i}", torch.zeros(2**i, channels))

    def forward(self, sample: Tensor) -> Tensor:
        x = self.first(sample)
        skip = torch.zeros_like(x)
        for i, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
            queue = self.get_buffer(f"queue{i}")
            a, b = gate(torch.cat([queue[:1], x], dim=1)).chunk(2, dim=1)
            queue.copy_(torch.cat([queue[1:], x]))
            skip = skip + torch.tanh(a) * torch.sigmoid(b)
            x = x + out(torch.tanh(a) * torch.sigmoid(b))
        return self.last(torch.relu(skip))


def _wavenet() -> Subject:
    with seeded():
        module = WaveNet().eval()
    return Subject(module, session("forward", lambda _: (torch.randn(1, 1),), 16))


class Wakeword(nn.Module):
    """A keyword spotter: a window of features moves through a small convolutional network, and
    the scores are smoothed over time."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()
        )
        self.head = nn.Linear(16, 3)
        self.register_buffer("window", torch.zeros(1, 1, 24, 16))
        self.register_buffer("scores", torch.zeros(1, 3))

    def forward(self, frame: Tensor) -> Tensor:
        window = torch.cat([self.window[:, :, 1:], frame], dim=2)
        self.window.copy_(window)
        scores = torch.softmax(self.head(self.network(window).mean((2, 3))), dim=1)
        self.scores.mul_(0.8).add_(scores, alpha=0.2)
        return self.scores.clone()


def _wakeword() -> Subject:
    with seeded():
        module = Wakeword().eval()
    return Subject(module, session("forward", lambda _: (3 * torch.randn(1, 1, 1, 16),)))


# --- recurrent networks ---------------------------------------------------------------------


class MinimalSsm(nn.Module):
    """A selective state-space layer as Mamba's: a short convolution and a recurrence."""

    def __init__(self, width: int = 32, states: int = 8, kernel: int = 4) -> None:
        super().__init__()
        self.width, self.states = width, states
        self.inner = nn.Linear(width, 2 * width)
        self.kernel = nn.Parameter(torch.randn(width, kernel) * 0.5)
        self.selection = nn.Linear(width, 2 * states + width)
        self.decay = nn.Parameter(torch.rand(width, states))
        self.out = nn.Linear(width, width)
        self.register_buffer("recent", torch.zeros(1, width, kernel))
        self.register_buffer("state", torch.zeros(1, width, states))

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.inner(x).chunk(2, dim=-1)
        self.recent.copy_(torch.roll(self.recent, -1, dims=-1))
        self.recent[:, :, -1] = value
        value = functional.silu((self.recent * self.kernel).sum(-1))
        b, c, delta = self.selection(value).split([self.states, self.states, self.width], dim=-1)
        delta = functional.softplus(delta).unsqueeze(-1)
        held = self.state * torch.exp(-delta * self.decay)
        self.state.copy_(held + delta * b.unsqueeze(1) * value.unsqueeze(-1))
        return self.out((self.state * c.unsqueeze(1)).sum(-1) * functional.silu(gate))


class Rwkv(nn.Module):
    """The time mixing of RWKV-4: a numerator, a denominator, a running maximum and the last
    input, all kept from call to call."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.receptance, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.mix = nn.Parameter(torch.rand(width))
        self.decay = nn.Parameter(-torch.rand(width))
        self.bonus = nn.Parameter(torch.rand(width))
        for name in ("last", "numerator", "denominator", "maximum"):
            self.register_buffer(name, torch.zeros(1, width))

    def forward(self, x: Tensor) -> Tensor:
        mixed = x * self.mix + self.last * (1 - self.mix)
        self.last.copy_(x)
        k, v = self.key(mixed), self.value(mixed)
        top = torch.maximum(self.maximum, self.bonus + k)
        old, new = torch.exp(self.maximum - top), torch.exp(self.bonus + k - top)
        mean = (old * self.numerator + new * v) / (old * self.denominator + new)
        top = torch.maximum(self.maximum + self.decay, k)
        old, new = torch.exp(self.maximum + self.decay - top), torch.exp(k - top)
        self.numerator.copy_(old * self.numerator + new * v)
        self.denominator.copy_(old * self.denominator + new)
        self.maximum.copy_(top)
        return self.out(torch.sigmoid(self.receptance(mixed)) * mean)


class LinearAttention(nn.Module):
    """A sum of outer products in the place of a cache."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("memory", torch.zeros(width, width))
        self.register_buffer("norm", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        self.memory.add_(k.transpose(0, 1) @ v)
        self.norm.add_(k[0])
        return (q @ self.memory) / (q @ self.norm.unsqueeze(1))


def _recurrent(make: type[nn.Module], width: int = 32, calls: int = 12) -> Subject:
    with seeded():
        module = make().eval()
    return Subject(module, session("forward", lambda _: (torch.randn(1, width),), calls))


def _gru() -> Subject:
    with seeded():
        module = GruStack(3, 32).eval()
    return Subject(module, session("forward", lambda _: (torch.randn(1, 32),)))


def _lstm() -> Subject:
    with seeded():
        module = LstmStack(3, 32).eval()
    return Subject(module, session("forward", lambda _: (torch.randn(1, 32),)))


def _convolutions() -> Subject:
    with seeded():
        module = StreamingConvolutions(4, 16, 3).eval()
    return Subject(module, session("forward", lambda _: (torch.randn(1, 16, 8),)))


# --- filters --------------------------------------------------------------------------------


class Biquads(nn.Module):
    """A cascade of second-order filters in transposed direct form, a sample at a time."""

    def __init__(self, sections: int = 3) -> None:
        super().__init__()
        self.register_buffer("forward_taps", torch.rand(sections, 3))
        self.register_buffer("feedback", torch.rand(sections, 2) * 0.5)
        self.register_buffer("state", torch.zeros(sections, 2))

    def forward(self, sample: Tensor) -> Tensor:
        for i in range(self.state.shape[0]):
            b, a = self.forward_taps[i], self.feedback[i]
            first, second = self.state[i, 0].clone(), self.state[i, 1].clone()
            y = b[0] * sample + first
            self.state[i, 0] = b[1] * sample - a[0] * y + second
            self.state[i, 1] = b[2] * sample - a[1] * y
            sample = y
        return sample


class Kalman(nn.Module):
    """A Kalman filter of a moving point: its estimate and its covariance are state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("transition", torch.tensor([[1.0, 0.1], [0.0, 1.0]]))
        self.register_buffer("estimate", torch.zeros(2, 1))
        self.register_buffer("covariance", torch.zeros(2, 2))

    def forward(self, measured: Tensor) -> Tensor:
        predicted = self.transition @ self.estimate
        spread = self.transition @ self.covariance @ self.transition.T + 0.1 * torch.eye(2)
        gain = spread[:, :1] / (spread[0, 0] + 0.5)
        self.estimate.copy_(predicted + gain * (measured - predicted[0, 0]))
        self.covariance.copy_(spread - gain @ spread[:1])
        return self.estimate.clone()


class Echo(nn.Module):
    """A delay line in a ring buffer with feedback; the position is state, too."""

    def __init__(self, delay: int = 24, block: int = 8) -> None:
        super().__init__()
        self.delay, self.block = delay, block
        self.register_buffer("line", torch.zeros(delay))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))

    def forward(self, samples: Tensor) -> Tensor:
        at = (self.position + torch.arange(self.block)) % self.delay
        out = samples + 0.6 * self.line[at]
        self.line.index_put_((at,), out)
        self.position.copy_((self.position + self.block) % self.delay)
        return out


class PreviousFrames(nn.Module):
    """Two buffers in a row: what was this call's becomes the last one's."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.mix = nn.Linear(3 * width, width)
        self.register_buffer("previous", torch.zeros(1, width))
        self.register_buffer("current", torch.zeros(1, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(torch.cat([self.previous, self.current, x], dim=1))
        self.previous.copy_(self.current)
        self.current.copy_(x)
        return y


def _biquads() -> Subject:
    with seeded():
        module = Biquads()
    return Subject(module, session("forward", lambda _: (torch.randn(()),), 16))


def _kalman() -> Subject:
    return Subject(Kalman(), session("forward", lambda _: (torch.randn(1, 1),), 16))


def _echo() -> Subject:
    return Subject(Echo(), session("forward", lambda _: (torch.randn(8),)))


def _previous() -> Subject:
    with seeded():
        module = PreviousFrames().eval()
    return Subject(module, session("forward", lambda _: (torch.randn(1, 16),)))


# --- memories -------------------------------------------------------------------------------


class ReplayBuffer(nn.Module):
    """A ring of transitions: `add` writes one, `sample` gathers some, `reset` empties it."""

    def __init__(self, size: int = 16, width: int = 6) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("transitions", torch.zeros(size, width))
        self.register_buffer("rewards", torch.zeros(size))
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))

    def add(self, transition: Tensor, reward: Tensor) -> Tensor:
        at = self.count % self.size
        self.transitions.index_put_((at,), transition)
        self.rewards.index_put_((at,), reward)
        self.count.add_(1)
        return self.count.clone()

    def sample(self, at: Tensor) -> tuple[Tensor, Tensor]:
        return self.transitions[at], self.rewards[at]

    def reset(self) -> Tensor:
        self.transitions.zero_()
        self.rewards.zero_()
        self.count.zero_()
        return self.count.clone()


def _replay() -> Subject:
    calls = []
    for number in range(12):
        with seeded(number):
            calls.append(Call("add", (torch.randn(1, 6), torch.randn(1))))
            if number % 3 == 2:
                calls.append(Call("sample", (torch.randint(0, 16, (5,)),)))
        if number == 7:
            calls.append(Call("reset", ()))
    return Subject(ReplayBuffer(), calls)


class NearestNeighbours(nn.Module):
    """An episodic memory: answers with what the nearest key had, and stores the new one."""

    def __init__(self, size: int = 12, width: int = 8) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("keys", torch.zeros(size, width))
        self.register_buffer("values", torch.zeros(size))
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))

    def forward(self, key: Tensor, value: Tensor) -> Tensor:
        distances = (self.keys - key).pow(2).sum(1)
        answer = self.values.index_select(0, distances.argmin().reshape(1))
        at = self.count % self.size
        self.keys.index_copy_(0, at, key)
        self.values.index_copy_(0, at, value)
        self.count.add_(1)
        return answer


def _neighbours() -> Subject:
    def make(_: int) -> Inputs:
        return torch.randn(1, 8), torch.randn(1)

    return Subject(NearestNeighbours(), session("forward", make, 16))


# --- training -------------------------------------------------------------------------------


class Momentum(nn.Module):
    """Least squares by gradient descent with momentum; the weights are state as well."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.register_buffer("weights", torch.zeros(width, 1))
        self.register_buffer("velocity", torch.zeros(width, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        error = x @ self.weights - y
        self.velocity.mul_(0.9).add_(x.T @ error / x.shape[0])
        self.weights.sub_(0.05 * self.velocity)
        return error.pow(2).mean()


class Adam(nn.Module):
    """The same by Adam, with bias correction by a step that is counted."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        for name in ("weights", "first", "second"):
            self.register_buffer(name, torch.zeros(width, 1))
        self.register_buffer("step", torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        error = x @ self.weights - y
        gradient = x.T @ error / x.shape[0]
        self.step.add_(1.0)
        self.first.mul_(0.9).add_(gradient, alpha=0.1)
        self.second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        first = self.first / (1 - torch.exp(self.step * math.log(0.9)))
        second = self.second / (1 - torch.exp(self.step * math.log(0.99)))
        self.weights.sub_(0.05 * first / (second.sqrt() + 1e-6))
        return error.pow(2).mean()


class RunningStatistics(nn.Module):
    """Welford's mean and variance, and inputs that are normalized by them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("squares", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1.0)
        delta = x - self.mean
        self.mean.add_(delta / self.count)
        self.squares.add_(delta * (x - self.mean))
        return (x - self.mean) / (self.squares / self.count + 1e-3).sqrt()


def _regression(make: type[nn.Module]) -> Subject:
    def inputs(_: int) -> Inputs:
        return torch.randn(4, 12), torch.randn(4, 1)

    return Subject(make(), session("forward", inputs, 16))


def _statistics() -> Subject:
    return Subject(RunningStatistics(), session("forward", lambda _: (torch.randn(16),)))


ROWS = [
    Row("RNN-T, encode, predict, join, reset", "RNN-T", _rnn_t),
    Row("Demucs, streaming", "Demucs", _demucs),
    Row("WaveNet", "WaveNet", _wavenet),
    Row("keyword spotter", "keyword spotter", _wakeword),
    Row("selective state space", "Mamba", lambda: _recurrent(MinimalSsm)),
    Row("RWKV-4 time mixing", "RWKV", lambda: _recurrent(Rwkv)),
    Row("linear attention", "linear attention", lambda: _recurrent(LinearAttention)),
    Row("GRU stack", "recurrent cells", _gru),
    Row("LSTM stack", "recurrent cells", _lstm),
    Row("streaming convolutions", "temporal convolutions", _convolutions),
    Row("biquad filters", "filters", _biquads),
    Row("Kalman filter", "filters", _kalman),
    Row("echo", "filters", _echo),
    Row("two frames back", "filters", _previous),
    Row("replay buffer, add, sample, reset", "memories", _replay),
    Row("nearest neighbours", "memories", _neighbours),
    Row("momentum", "optimizers", lambda: _regression(Momentum)),
    Row("Adam", "optimizers", lambda: _regression(Adam)),
    Row("running statistics", "optimizers", _statistics),
]
