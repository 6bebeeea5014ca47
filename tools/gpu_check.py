"""What one NVIDIA GPU shows of elastic training, as JSON: at most eight minutes.

    python tools/gpu_check.py [--out figures.json] [--size-mb 2000]

Each part runs in a process of its own with a time limit, so that a part that fails leaves the
others. Without a GPU, or with a PyTorch that has no CUDA, the script says so and ends with code 2.

1. ``warm_start``: seconds of imports, of the CUDA context, and of a fork with imports alone.
2. ``snapshot``: a save of tensors of the GPU to shared memory on a copy stream, beside a bare copy
   to pinned memory; and the restore.
3. ``node_check``: the node check of ``gangline run`` on this GPU.
4. ``nccl``: a group of one rank is formed, aborted while it is in use, and formed again.
5. ``plan``: memory and time of a step as ``gangline plan`` predicts them, beside the measured ones.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PART_S = 90.0
REPEATS = 5


def median_s(work: Callable[[], object]) -> float:
    """Return the median of the seconds that some work takes on the device."""
    import torch

    taken = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[REPEATS // 2]


def warm_start(_: int) -> dict[str, float]:
    """Time imports, the context, and a fork with imports alone."""
    begin = time.perf_counter()
    import torch

    imported = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
        os._exit(0)
    os.waitpid(pid, 0)
    forked = time.perf_counter()
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    return {
        "import_s": imported - begin,
        "fork_and_context_s": forked - imported,
        "context_s": time.perf_counter() - forked,
    }


def snapshot(size_mb: int) -> dict[str, float]:
    """Time saves and restores beside a bare copy."""
    import torch

    from gangline.elastic.checkpoint.checkpointer import Checkpointer

    size = size_mb * 1_000_000 // 4 // 40
    state = {f"weight{number}": torch.randn(size, device="cuda") for number in range(40)}
    moved = 40 * size * 4 / 1e9
    pinned = [torch.empty(size, pin_memory=True) for _ in state]

    def copy() -> None:
        for target, source in zip(pinned, state.values(), strict=True):
            target.copy_(source, non_blocking=True)

    copy()
    bare_s = median_s(copy)
    with tempfile.TemporaryDirectory() as folder, Checkpointer(folder) as checkpointer:
        checkpointer.save(0, state)
        steps = iter(range(1, 100))
        save_s = median_s(lambda: checkpointer.save(next(steps), state))
        expected = state["weight7"].clone()
        state["weight7"].zero_()
        restore_s = median_s(lambda: checkpointer.load(state))
        is_equal = bool(torch.equal(state["weight7"], expected))
    return {
        "gigabytes": moved, "bare_copy_s": bare_s, "bare_copy_gb_per_s": moved / bare_s,
        "save_s": save_s, "save_gb_per_s": moved / save_s, "restore_s": restore_s,
        "restored_is_equal": float(is_equal),
    }  # fmt: skip


def node_check(_: int) -> dict[str, Any]:
    """Run the check of the launcher, and a script that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "nothing.py")
        script.write_text("import torch\n")
        launcher = [sys.executable, "-m", "gangline.elastic.launcher", "--standalone"]
        begin = time.perf_counter()
        done = subprocess.run(
            [*launcher, "--network-check", "--comm-perf-test", "--nproc-per-node", "1", script],
            capture_output=True, text=True, check=False, env={**os.environ, "LOGLEVEL": "INFO"},
        )  # fmt: skip
    lines = done.stderr.splitlines()
    return {
        "exit_code": done.returncode,
        "seconds": time.perf_counter() - begin,
        "log": lines[-12:],
    }


def nccl(_: int) -> dict[str, float]:
    """Form a group of one rank, abort it while it is in use, and form it again."""
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1"}
    times: dict[str, float] = {}
    weight = torch.ones(1 << 24, device="cuda")
    for attempt in ("form_s", "form_again_s"):
        os.environ["MASTER_PORT"] = "0"
        begin = time.perf_counter()
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        dist.init_process_group("nccl", store=store, rank=0, world_size=1)
        dist.all_reduce(weight)
        torch.cuda.synchronize()
        times[attempt] = time.perf_counter() - begin
        dist.all_reduce(weight)
        begin = time.perf_counter()
        group: Any = dist.distributed_c10d._get_default_group()
        group._get_backend(torch.device("cuda")).abort()
        dist.destroy_process_group()
        times["abort_s"] = time.perf_counter() - begin
    return times


def plan(_: int) -> dict[str, Any]:
    """Train a transformer of 124 million parameters, and predict the same."""
    import torch

    from gangline.sizing.hardware import DEVICES
    from gangline.sizing.plan import PlanRequest, make_plan
    from gangline.sizing.sources.guess import described_shape
    from gangline.sizing.transformer import TransformerModel

    layers, hidden, heads, vocabulary, sequence, batch = 12, 768, 12, 50_304, 1024, 4
    name = torch.cuda.get_device_name()
    device = max(
        (one for one in DEVICES if one.name in name), key=lambda one: len(one.name), default=None
    )
    fields = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocabulary}
    described = described_shape(sequence, fields)
    layer = torch.nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, 0.0, batch_first=True)
    blocks = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    head = torch.nn.Linear(hidden, vocabulary, bias=False)
    table = torch.nn.Embedding(vocabulary, hidden)
    head.weight = table.weight
    model = torch.nn.Sequential(table, blocks, head).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    records = torch.randint(vocabulary, (batch, sequence), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(
                model(records).flatten(0, 1), records.flatten()
            )
        loss.backward()
        optimizer.step()

    step()
    torch.cuda.reset_peak_memory_stats()
    measured = {"step_s": median_s(step), "memory_gb": torch.cuda.max_memory_allocated() / 1e9}
    if device is None:
        return {"measured": measured, "predicted": f"{name} is not in the table of devices"}
    choice = make_plan(
        PlanRequest(TransformerModel(described.shape), device, devices=1, global_batch=batch)
    ).choices[0]
    predicted = {
        "step_s": choice.step_s.middle,
        "memory_gb": choice.candidate.memory.total / 1e9,
        "micro_batch": choice.candidate.layout.micro_batch,
    }
    return {"measured": measured, "predicted": predicted}


PARTS = {part.__name__: part for part in (warm_start, snapshot, node_check, nccl, plan)}


def run_part(name: str, size_mb: int) -> dict[str, Any]:
    """Run a part in a process of its own; return its figures, or why there are none."""
    command = [sys.executable, __file__, "--part", name, "--size-mb", str(size_mb)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PART_S)
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {PART_S:g} s"}
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-5:]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    """Run all parts, or one of them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--size-mb", type=int, default=2000)
    parser.add_argument("--part", choices=PARTS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(PARTS[options.part](options.size_mb)))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("gpu_check: PyTorch finds no NVIDIA GPU", file=sys.stderr)
        return 2
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    figures: dict[str, Any] = {**about, **{name: run_part(name, options.size_mb) for name in PARTS}}
    text = json.dumps(figures, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 1 if any("error" in figures[name] for name in PARTS) else 0


if __name__ == "__main__":
    sys.exit(main())
