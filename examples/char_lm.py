"""Train a small GPT on the text of Python's own standard library, character by character.

mpirun -np 2 python examples/char_lm.py
elche-run -np 4 examples/char_lm.py --speeds 1,1,2,4
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from pathlib import Path

import emulated
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import Dataset

import elche

VOCABULARY = 128  # ASCII; anything else reads as "?"


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of `context` characters, each with the characters that come one later."""

    def __init__(self, num_chars: int, context: int) -> None:
        sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = "".join(source.read_text(encoding="utf-8", errors="replace") for source in sources)
        codes = text[:num_chars].encode("ascii", errors="replace")
        self.codes = torch.frombuffer(bytearray(codes), dtype=torch.uint8).long()
        self.context = context

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.context
        piece = self.codes[start : start + self.context + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    """Causal self-attention, then two linear layers, each added to its input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_btc: Tensor) -> Tensor:
        """Return the block's output, shaped as its input: b batch, t time, c channels."""
        heads = self.queries_keys_values(self.norm_1(x_btc)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btc = x_btc + self.project(mixed.transpose(1, 2).flatten(2))
        return x_btc + self.feed(self.norm_2(x_btc))


class GPT(nn.Module):
    """Characters (b batch, t time) in, scores of the next character (b, t, vocabulary) out."""

    def __init__(self, context: int, width: int = 96, num_heads: int = 4, num_blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_blocks)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, codes_bt: Tensor) -> Tensor:
        """Return the scores."""
        x_btc = self.embed(codes_bt) + self.position[: codes_bt.shape[1]]
        return self.norm(self.blocks(x_btc)) @ self.embed.weight.T  # the embedding is tied to the output


@torch.no_grad()
def write(model: GPT, prompt: str, length: int, context: int) -> str:
    """Return `prompt` and `length` characters that the model adds to it."""
    codes = list(prompt.encode("ascii"))
    model.eval()
    for _ in range(length):
        scores = model(torch.tensor([codes[-context:]]))[0, -1]
        codes.append(int(torch.multinomial(F.softmax(scores / 0.7, dim=0), 1)))
    return bytes(codes).decode("ascii")


def train(args: argparse.Namespace) -> GPT:
    torch.manual_seed(0)
    text = Text(args.chars, args.context)
    model = GPT(args.context)
    emulated.slow_down(model, args, batch_size=args.batch_size, rank=elche.rank(), size=elche.size())
    loader = elche.DataLoader(text, batch_size=args.batch_size, shuffle=True)
    optimizer = elche.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01),
        named_parameters=model.named_parameters(),
        loader=loader,
        cadence=elche.Cadence(anchor=2, max_grad_norm=1.0),
    )
    for _ in range(args.epochs):
        for codes, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(codes).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            if optimizer.updated and optimizer.num_updates % 20 == 0 and elche.rank() == 0:
                bits = loss.item() / math.log(2)
                print(f"update {optimizer.num_updates:>4}, {bits:.2f} bits per character", flush=True)
    return model


def arguments() -> argparse.Namespace:
    parser = emulated.parser()
    parser.add_argument("--chars", type=int, default=800_000, help="how much of the library's text to read")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)  # ranks share the cores of one machine
    args = arguments()
    elche.init()
    model = train(args)
    if elche.rank() == 0:
        print(write(model, "def ", 300, args.context))
    elche.shutdown()
