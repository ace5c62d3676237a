"""Small models, and samples for them: one of each kind that has broken a trainer somewhere."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, default_collate

NUM_CLASSES, NUM_TOKENS, LENGTH, IGNORED = 3, 11, 5, -100
RARE_IDS = (4, 29)  # the samples that take Branching's rare branch
_one_at_a_time = threading.Lock()


class Mlp(nn.Module):
    inputs = "numbers"

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, NUM_CLASSES))

    def forward(self, x, ids):
        return self.layers(x)


class ConvNet(nn.Module):
    inputs = "images"

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, NUM_CLASSES)

    def forward(self, x, ids):
        return self.head(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3)))


class Embedded(nn.Module):
    inputs = "tokens"

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, 6)
        self.head = nn.Linear(6, NUM_CLASSES)

    def forward(self, x, ids):
        return self.head(self.embedding(x).mean(dim=1))


class Tied(nn.Module):
    """Predicts tokens with the matrix that embeds them; its loss is a mean over the tokens that count."""

    inputs = "sequences"

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, NUM_TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x, ids):
        return self.head(torch.tanh(self.mix(self.embedding(x)))).flatten(0, 1)


class Branching(nn.Module):
    """`rare` sees a few samples only, so most batches give it no gradient; `unused` never has one."""

    inputs = "numbers"

    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Linear(6, 8), nn.Linear(8, NUM_CLASSES)
        self.rare, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, ids):
        hidden = torch.tanh(self.trunk(x))
        rare = torch.isin(ids, torch.tensor(RARE_IDS))
        if rare.any():
            hidden = torch.where(rare[:, None], self.rare(hidden), hidden)
        return self.head(hidden)


MODELS = {model.__name__: model for model in (Mlp, ConvNet, Embedded, Tied, Branching)}


def make_model(name: str, dtype: torch.dtype, seed: int) -> nn.Module:
    """Build one from a seed, also in threads, which share PyTorch's generator."""
    with _one_at_a_time, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name]().to(dtype)


class Samples(Dataset):
    """(input, target, id) of each sample; sample `poisoned` has an input of inf."""

    def __init__(self, model: str, num_samples: int, dtype: torch.dtype, poisoned: int | None = None):
        rng = np.random.default_rng(0)
        inputs, shape = MODELS[model].inputs, {"images": (1, 4, 4), "numbers": (6,)}
        self.y = torch.from_numpy(rng.integers(0, NUM_CLASSES, num_samples))
        if inputs in shape:
            self.x = torch.from_numpy(rng.standard_normal((num_samples, *shape[inputs]))).to(dtype)
        else:
            self.x = torch.from_numpy(rng.integers(0, NUM_TOKENS, (num_samples, LENGTH)))
        if inputs == "sequences":
            lengths = torch.from_numpy(rng.integers(1, LENGTH + 1, num_samples))
            self.y = self.x.roll(-1, 1).where(torch.arange(LENGTH) < lengths[:, None], IGNORED)
        if poisoned is not None:
            self.x[poisoned] = torch.inf

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index], index

    def batch(self, ids: list[int]) -> list[Tensor]:
        """These samples as one batch."""
        return default_collate([self[index] for index in ids])


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """The batch's mean loss, over samples or over tokens that count."""
    x, y, ids = batch
    return cross_entropy(model(x, ids), y.flatten(), ignore_index=IGNORED)


def count_tokens(batch: list[Tensor]) -> float:
    """The weight of a batch of sequences."""
    return float((batch[1] != IGNORED).sum())
