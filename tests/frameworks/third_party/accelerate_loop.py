"""A loop of Hugging Face's accelerate with its own checkpoints: model, optimizer, random states."""

import pathlib
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from records import end, end_step, start
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3
SAVED_EVERY = 2


def main() -> None:
    project = ProjectConfiguration(
        project_dir=sys.argv[1], automatic_checkpoint_naming=True, total_limit=2
    )
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), gradient_accumulation_steps=1, project_config=project
    )
    start()
    torch.manual_seed(3)
    records = torch.randn(32, 16)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(32, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    loader = DataLoader(TensorDataset(records, records[:, :4].argmax(1)), 4, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    done = resume(accelerator, pathlib.Path(sys.argv[1], "checkpoints"))
    for epoch in range(done // len(loader), EPOCHS):
        loader.set_epoch(epoch)
        skipped = done % len(loader) if epoch == done // len(loader) else 0
        for inputs, labels in accelerator.skip_first_batches(loader, skipped):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            done += 1
            if done % SAVED_EVERY == 0:
                accelerator.save_state()
            end_step(done, accelerator.reduce(loss.detach(), "mean").item())
    end(accelerator.unwrap_model(model).state_dict())
    accelerator.end_training()


def resume(accelerator: Accelerator, folder: pathlib.Path) -> int:
    """Load the newest checkpoint; return the steps that it has."""
    saved = sorted(int(path.name.split("_")[-1]) for path in folder.glob("checkpoint_*"))
    if not saved:
        return 0
    accelerator.load_state(str(folder / f"checkpoint_{saved[-1]}"))
    accelerator.project_configuration.iteration = saved[-1] + 1
    return (saved[-1] + 1) * SAVED_EVERY


if __name__ == "__main__":
    main()
