"""One process of a data-parallel training whose world size changes between phases."""

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from gangline.elastic.trainer.loader import ElasticDataLoader, ElasticDistributedSampler
from gangline.elastic.trainer.trainer import ElasticTrainer

EPOCHS = 2
GLOBAL_BATCH = 10
MICRO_BATCH = 3


def main() -> None:
    """Train through the phases that this rank is part of; the first rank prints the weights."""
    rank, port, phases = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(4)
    inputs = torch.randn(70, 4, dtype=torch.float64)
    data = TensorDataset(inputs, (inputs**2).sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model.double()
    plain = torch.optim.Adam(model.parameters(), lr=0.05)
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    for number, (world, steps) in enumerate(phases):
        if rank < world:
            phase = dist.PrefixStore(str(number), store)
            dist.init_process_group("gloo", store=phase, rank=rank, world_size=world)
            state = [model.state_dict(), plain.state_dict(), None]
            kept = store.get(f"state/{number}") if number else b""
            if kept:
                state = torch.load(kept.decode(), weights_only=True)
            train(model, plain, data, state, steps)
            if rank == 0:
                path = f"{sys.argv[4]}/state-{number}"
                torch.save(state, path)
                store.set(f"state/{number + 1}", path)
            dist.barrier()
            dist.destroy_process_group()
    if rank == 0:
        flat = [value for p in model.parameters() for value in p.flatten().tolist()]
        print(json.dumps({"weights": flat, "trainer": state[2]}))


def train(
    model: torch.nn.Module,
    plain: torch.optim.Optimizer,
    data: TensorDataset,
    state: list,  # type: ignore[type-arg]
    steps: int,
) -> None:
    """Train ``steps`` global batches from ``state``, and update it."""
    model.load_state_dict(state[0])
    plain.load_state_dict(state[1])
    sampler = ElasticDistributedSampler(data, global_batch_size=GLOBAL_BATCH, seed=9)
    loader = ElasticDataLoader(data, MICRO_BATCH, sampler)
    trainer = ElasticTrainer(DistributedDataParallel(model), loader)
    optimizer = trainer.prepare(plain)
    if state[2]:
        trainer.load_state_dict(state[2])
    end = trainer.num_steps + steps
    for epoch in range(sampler.epoch, EPOCHS):
        with trainer.epoch(epoch):
            for features, targets in loader:
                with trainer.step():
                    optimizer.zero_grad()
                    loss = torch.nn.functional.mse_loss(trainer.model(features), targets)
                    loss.backward()
                    optimizer.step()
                if trainer.num_steps == end:
                    state[:] = [model.state_dict(), plain.state_dict(), trainer.state_dict()]
                    return


if __name__ == "__main__":
    main()
