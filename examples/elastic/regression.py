"""Linear regression under the elastic trainer: any number of processes gives the same result."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from gangline.elastic.trainer.loader import ElasticDataLoader, ElasticDistributedSampler
from gangline.elastic.trainer.trainer import ElasticTrainer

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(120, 4, dtype=torch.float64)
data = TensorDataset(
    inputs, inputs @ torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
)
model = DistributedDataParallel(torch.nn.Linear(4, 1, dtype=torch.float64))
sampler = ElasticDistributedSampler(data, global_batch_size=10)
loader = ElasticDataLoader(data, batch_size=3, sampler=sampler)
trainer = ElasticTrainer(model, loader)
optimizer = trainer.prepare(torch.optim.Adam(model.parameters(), 0.05))
for epoch in range(5):
    with trainer.epoch(epoch):
        for features, targets in loader:
            with trainer.step():
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(features), targets).backward()
                optimizer.step()
if dist.get_rank() == 0:
    weights = [f"{each:.9f}" for each in model.module.weight.detach().flatten().tolist()]
    print(f"{dist.get_world_size()} processes, {trainer.num_steps} steps:", *weights, flush=True)
dist.barrier()
dist.destroy_process_group()
