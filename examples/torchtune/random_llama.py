"""Write a small Llama 3.2 with random weights, a tokenizer of bytes, and instructions.

usage: random_llama.py FOLDER; FOLDER/model is as the repository of such a model.
"""

import base64
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torchtune.models.convert_weights import tune_to_hf
from torchtune.models.llama3_2 import llama3_2

HEADS, KV_HEADS, WIDTH, VOCABULARY = 4, 2, 64, 128_256


def main(folder: Path) -> None:
    model, dataset = folder / "model", folder / "dataset"
    (model / "original").mkdir(parents=True)
    dataset.mkdir()
    torch.manual_seed(0)
    network = llama3_2(
        vocab_size=VOCABULARY,
        num_layers=2,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        embed_dim=WIDTH,
        max_seq_len=256,
        intermediate_dim=2 * WIDTH,
    )
    weights = tune_to_hf(network.state_dict(), num_heads=HEADS, num_kv_heads=KV_HEADS, dim=WIDTH)
    save_file(
        {name: each.contiguous() for name, each in weights.items()}, model / "model.safetensors"
    )
    config = {
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_size": WIDTH,
        "vocab_size": VOCABULARY,
    }
    (model / "config.json").write_text(json.dumps(config))
    lines = (f"{base64.b64encode(bytes([n])).decode()} {n}\n" for n in range(256))
    (model / "original" / "tokenizer.model").write_text("".join(lines))
    questions = [
        {"instruction": f"What is {n} plus one?", "input": "", "output": str(n + 1)}
        for n in range(64)
    ]
    (dataset / "data.json").write_text(json.dumps(questions))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
