"""Time of ``gangline plan``: the command from flags and from a file, and the search alone.

python -m benchmarks sizing_plan_time
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gangline.sizing.hardware import find_device
from gangline.sizing.model import ModelShape
from gangline.sizing.plan import PlanRequest, make_plan
from gangline.sizing.transformer import TransformerModel

RUNS = 7
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


def command(*arguments: str) -> list[float]:
    """Seconds of new processes."""
    program = [sys.executable, "-m", "gangline", "plan", *arguments]
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run(program, check=True, capture_output=True)
        found.append(time.perf_counter() - began)
    return found


def imports_torch() -> bool:
    """Whether the command, without a trace, imports PyTorch."""
    text = (
        "import sys; from gangline.cli.commands.plan import plan_command as plan\n"
        "plan(['--params', '7B', '--gpus', '64'], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], check=False, capture_output=True)
    return done.returncode != 0


def report(name: str, seconds: list[float], target_s: float) -> None:
    print(f"{name}: median {statistics.median(seconds):.3f} s, least {min(seconds):.3f} s "
          f"(target {target_s} s)")  # fmt: skip


def main() -> None:
    report("from flags", command("--params", "7B", "--gpus", "64"), 0.3)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.json")
        file.write_text(json.dumps(LLAMA))
        report("from config.json", command("--config", str(file), "--gpus", "64"), 0.3)
    shape = ModelShape(80, 8192, 64, 4096, 32000, gated=True, tied=False, biases=False)
    request = PlanRequest(TransformerModel(shape), find_device("H100"), 512)
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        make_plan(request)
        seconds.append(time.perf_counter() - began)
    report("search of 512 GPUs, 70 billion parameters", seconds, 2.0)
    print(f"imports PyTorch: {imports_torch()}")


if __name__ == "__main__":
    main()
