"""Train a small GPT on characters, as nanoGPT's ``train.py`` does.

Globals are the configuration, RANK in the environment selects DDP, rank 0 writes one ``ckpt.pt``
with model, optimizer and step. Random states are not saved: each start draws from its seed again.
"""

import os

os.environ["OMP_NUM_THREADS"] = "2"  # before its imports, as many scripts do

import math
import pathlib
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import numpy
import torch
import torch.distributed
from records import end, end_step, start
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

out_dir = pathlib.Path(sys.argv[1])
max_iters = 10
checkpoint_interval = 2
eval_interval = 5
eval_iters = 2
gradient_accumulation_steps = 4
batch_size = 4
learning_rate, min_lr, warmup_iters = 1e-2, 1e-3, 2
weight_decay, grad_clip = 0.1, 1.0


@dataclass
class Config:
    vocabulary: int
    context: int = 32
    layers: int = 2
    heads: int = 2
    width: int = 32
    dropout: float = 0.1


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.project = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(config.width) for _ in range(2)])
        self.attention = Attention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*[Block(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self.initialize)

    @staticmethod
    def initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, x, y):
        places = torch.arange(x.shape[1], device=x.device)
        logits = self.head(self.norm(self.blocks(self.tokens(x) + self.positions(places))))
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    def configure_optimizer(self) -> torch.optim.AdamW:
        matrices = [each for each in self.parameters() if each.dim() >= 2]
        vectors = [each for each in self.parameters() if each.dim() < 2]
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


ddp = "RANK" in os.environ
if ddp:
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    assert gradient_accumulation_steps % world == 0
    gradient_accumulation_steps //= world
else:
    rank, world, device = 0, 1, "cpu"
start()
master = rank == 0
torch.manual_seed(1337 + rank)
if master:
    out_dir.mkdir(exist_ok=True)

text = pathlib.Path(__file__).read_text()  # the corpus: it is always there
characters = sorted(set(text))
numbers = numpy.array([characters.index(each) for each in text], dtype=numpy.uint16)
split = int(0.9 * len(numbers))
data = {"train": numbers[:split], "val": numbers[split:]}
config = Config(len(characters))


def get_batch(which: str):
    starts = torch.randint(len(data[which]) - config.context - 1, (batch_size,)).tolist()
    rows = [data[which][at : at + config.context + 1].astype(numpy.int64) for at in starts]
    both = torch.from_numpy(numpy.stack(rows)).to(device)
    return both[:, :-1], both[:, 1:]


model = GPT(config)
first = 0
if saved := (out_dir / "ckpt.pt").exists():
    checkpoint = torch.load(out_dir / "ckpt.pt", map_location=device)
    model.load_state_dict(checkpoint["model"])
    first = checkpoint["step"]
model.to(device)
optimizer = model.configure_optimizer()
if saved:
    optimizer.load_state_dict(checkpoint["optimizer"])
raw = model
if ddp:
    model = DistributedDataParallel(model)


@torch.no_grad()
def estimate_loss():
    raw.eval()
    means = {
        which: sum(raw(*get_batch(which)).item() for _ in range(eval_iters)) / eval_iters
        for which in data
    }
    raw.train()
    return means


def rate_at(step: int) -> float:
    if step < warmup_iters:
        return learning_rate * (step + 1) / (warmup_iters + 1)
    part = (step - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * part)) * (learning_rate - min_lr)


for step in range(first, max_iters):
    for group in optimizer.param_groups:
        group["lr"] = rate_at(step)
    if step % eval_interval == 0 and master:
        print({name: f"{value:.6f}" for name, value in estimate_loss().items()}, flush=True)
    for micro in range(gradient_accumulation_steps):
        last = micro == gradient_accumulation_steps - 1
        with model.no_sync() if ddp and not last else nullcontext():
            loss = model(*get_batch("train")) / gradient_accumulation_steps
            loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if master and (step + 1) % checkpoint_interval == 0:
        checkpoint = {
            "model": raw.state_dict(),
            "optimizer": optimizer.state_dict(),
            "model_args": asdict(config),
            "step": step + 1,
        }
        torch.save(checkpoint, out_dir / "ckpt.pt")
    end_step(step + 1, loss.item() * gradient_accumulation_steps)
end(raw.state_dict())
if ddp:
    torch.distributed.destroy_process_group()
