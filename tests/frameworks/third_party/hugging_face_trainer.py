"""Fine-tune a small GPT-2 with Hugging Face's Trainer, which resumes from its own checkpoints."""

import os
import sys

os.environ["HF_HOME"] = os.path.join(sys.argv[1], "hugging-face")  # before its imports

import torch
from huggingface_hub import constants
from records import end, end_step, start
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEPS = 8


class Steps(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:  # the end of a step, before its checkpoint
            end_step(state.global_step, logs["loss"])


def main() -> None:
    folder = sys.argv[1]
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        warmup_steps=2,
        save_steps=2,
        logging_steps=1,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        seed=5,
    )
    start(home=constants.HF_HOME)
    torch.manual_seed(0)
    text = torch.randint(64, (32, 16))
    rows = [{"input_ids": row, "labels": row} for row in text]
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = GPT2LMHeadModel(config)
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Steps()])
    last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
    trainer.train(resume_from_checkpoint=last)
    end(model.state_dict())


if __name__ == "__main__":
    main()
