"""What two real processes report: exchange, noise and times, without a difference in training.

Takes 40 s: pairs of processes import PyTorch and train, with and without what is measured.
"""

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from gangline.elastic.progress import TrainingReport, read_progress

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from gangline.elastic.trainer.loader import ElasticDataLoader
from gangline.elastic.trainer.loader import ElasticDistributedSampler
from gangline.elastic.trainer.trainer import ElasticTrainer

torch.set_num_threads(1)
dist.init_process_group("gloo")
size = 2000
for file in sys.argv[1:]:
    if file:
        os.environ["GANGLINE_PROGRESS_FILE"] = file
    torch.manual_seed(4)
    true = torch.full((size,), size ** -0.5)
    records = true + torch.randn(3200, size) * (50.0 / size) ** 0.5
    sampler = ElasticDistributedSampler(TensorDataset(records), global_batch_size=16)
    loader = ElasticDataLoader(TensorDataset(records), 4, sampler)
    model = DistributedDataParallel(torch.nn.Linear(size, 1, bias=False))
    trainer = ElasticTrainer(model, loader)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.01))
    for epoch in range(1):
        with trainer.epoch(epoch):
            for (batch,) in loader:
                with trainer.step():
                    optimizer.zero_grad()
                    trainer.model(batch).mean().backward()
                    optimizer.step()
    print(f"{sum(p.sum().item() for p in model.parameters()):.12f}")
dist.destroy_process_group()
"""


async def train_with_and_without_a_report(
    folder: Path,
) -> tuple[list[str], list[TrainingReport | None]]:
    """The sum of the weights of each rank and training, and the reports."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    processes = []
    files = [folder / f"progress-{rank}" for rank in range(2)]
    for rank, file in enumerate(files):
        environment = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }  # fmt: skip
        processes.append(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", SCRIPT, "", str(file)),
                env=environment,
                stdout=asyncio.subprocess.PIPE,
            )
        )
    outputs = await asyncio.gather(*(process.communicate() for process in processes))
    assert [process.returncode for process in processes] == [0, 0]
    weights = [line for output, _ in outputs for line in output.decode().split()]
    return weights, [read_progress(file, folder / "none").training for file in files]


async def test_two_processes_report_exchange_and_noise(tmp_path: Path) -> None:
    weights, reports = await train_with_and_without_a_report(tmp_path)
    assert len(weights) == 4
    assert len(set(weights)) == 1, "measuring changes no weight"
    for report in reports:
        assert report is not None
        assert (report.batch_size, report.accumulation, report.global_batch) == (4, 2, 16)
        assert report.compute_s is not None
        assert report.compute_s > 0
        assert report.sync_s is not None
        assert report.sync_s > 0
        assert report.step_times is not None
        assert report.step_times.count > 100
    both = TrainingReport.merge([each for each in reports if each is not None])
    assert both is not None
    assert both.grad_sqr is not None
    assert both.grad_var is not None
    assert both.grad_var / both.grad_sqr == pytest.approx(50.0, rel=0.25)
