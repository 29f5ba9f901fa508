"""PyTorch: an MLP, a convolutional network, a small GPT with mixed precision, CUDA graphs, torch.compile, DistributedDataParallel on one GPU."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch
from torch import nn

BATCH = 128


def seeded() -> torch.device:
    torch.manual_seed(7)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    return torch.device(common.options.device)


def finish() -> None:
    if common.options.device == "cuda":
        torch.cuda.synchronize()


def training(model: nn.Module, x: torch.Tensor, y: torch.Tensor, rate: float = 0.01) -> Callable[[], torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def mlp_model(device: torch.device) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    return model, torch.randn(BATCH, 256).to(device), torch.randint(0, 10, (BATCH,)).to(device)


def mlp() -> dict[str, Any]:
    return common.timed(training(*mlp_model(seeded())), finish, float, BATCH)


def cnn() -> dict[str, Any]:
    device = seeded()
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 10)).to(device)
    x, y = torch.randn(BATCH, 3, 32, 32).to(device), torch.randint(0, 10, (BATCH,)).to(device)
    return common.timed(training(model, x, y), finish, float, BATCH)


class Gpt(nn.Module):
    """Two blocks of causal attention over a vocabulary of 96."""

    def __init__(self, words: int = 96, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        block = {"d_model": width, "nhead": 4, "dim_feedforward": 4 * width, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(**block) for _ in range(2))
        self.out = nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.out(x)


def gpt_amp() -> dict[str, Any]:
    device = seeded()
    model = Gpt().to(device)
    tokens = torch.randint(0, 96, (16, 65)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, enabled=half == torch.float16)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=half):
            words = model(tokens[:, :-1])
            loss: torch.Tensor = nn.functional.cross_entropy(words.flatten(0, 1), tokens[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return common.timed(step, finish, float, 16 * 64)


def graphs() -> dict[str, Any]:
    """The MLP's whole step as one CUDA graph, replayed."""
    device = seeded()
    if device.type != "cuda":
        raise RuntimeError("CUDA graphs need a GPU")
    model, x, y = mlp_model(device)
    step = training(model, x, y)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return loss

    return common.timed(replay, finish, float, BATCH)


def compiled() -> dict[str, Any]:
    model, x, y = mlp_model(seeded())
    return common.timed(training(torch.compile(model), x, y), finish, float, BATCH)


def ddp() -> dict[str, Any]:
    device = seeded()
    with tempfile.TemporaryDirectory() as folder:
        store = torch.distributed.FileStore(str(Path(folder) / "store"), 1)
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=0, world_size=1)
        try:
            model, x, y = mlp_model(device)
            return common.timed(training(nn.parallel.DistributedDataParallel(model), x, y), finish, float, BATCH)
        finally:
            torch.distributed.destroy_process_group()


TESTS: dict[str, Callable[[], dict[str, Any]]] = {"mlp": mlp, "cnn": cnn, "gpt_amp": gpt_amp, "compile": compiled, "graphs": graphs, "ddp": ddp}

if __name__ == "__main__":
    sys.exit(common.main(TESTS, lambda: f"PyTorch {torch.__version__}"))
