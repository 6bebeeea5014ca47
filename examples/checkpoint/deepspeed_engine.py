"""DeepSpeed with ZeRO and flash checkpoints; killed and restarted, it continues exactly.

torchrun --nproc-per-node 2 deepspeed_engine.py /tmp/checkpoints 50 2      (the last: ZeRO's stage)
Needs what is in requirements.txt; without a GPU set DS_ACCELERATOR=cpu.
"""

import os
import sys

import deepspeed
import torch

from gangline.elastic.checkpoint.deepspeed import FlashEngine


def main(folder: str, steps: int, stage: int) -> None:
    """Train this number of steps in total, saving each to memory and each tenth to storage."""
    deepspeed.init_distributed(os.environ.get("BACKEND", "gloo"))
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(32, 4)
    engine, *_ = deepspeed.initialize(
        model=torch.nn.Sequential(*layers),
        config={
            "train_micro_batch_size_per_gpu": 32,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "torch_adam": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
            "zero_optimization": {"stage": stage},
        },
    )
    torch.manual_seed(engine.global_rank)
    flash = FlashEngine(engine, folder)
    flash.load()
    while engine.global_steps < steps:
        records = torch.randn(32, 16, device=engine.device)
        loss = torch.nn.functional.cross_entropy(engine(records), records[:, :4].argmax(1))
        engine.backward(loss)
        engine.step()
        print(f"step {engine.global_steps} loss {loss.item():.9f}", flush=True)
        flash.save("storage" if engine.global_steps % 10 == 0 else "memory")
    flash.wait()
    flash.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 2)
