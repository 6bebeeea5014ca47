"""Time a slice of a model, its optimizer and all-reduces: one process of a calibration.

    python timed_slice.py --rank 0 --ranks 2 --store FILE '{"hidden": 256, ...}'

Runs in the interpreter that has torch, where Gangline need not be installed: it imports the
standard library and torch only. Rank 0 prints one JSON object, which is the calibration's file.
The slice is two layers of a transformer, or the complete model of FILE:FUNCTION. 45 steps of the
layers are timed: with half of the samples, with them, and with twice as many. Where that would take
minutes, as on processors, samples are shorter and steps are fewer. What is timed next is a line of
the standard error that begins with ``PROGRESS``.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

STEPS = 15
LAYERS = 2
PRODUCT = 2048
"""Rows and columns of the large product; on a processor half of them."""
UPDATED = 2**24
"""Parameters that the optimizer updates at most: with their moments more than caches hold."""
COPIED = 2**23
"""Bytes of the copy, about as many as a block that FSDP gathers."""
SWEEP = tuple(2**power for power in range(12, 27, 2))
"""Bytes of the all-reduces: 4 KiB to 64 MiB."""
EXIT_REFUSED = 3
PROGRESS = "progress: "
LIMIT_S = 6.0
"""Seconds of a measurement, after which fewer steps are taken; some parts have several of them."""
LEAST_TIMES = 3
STEP_S = 0.4
"""Seconds that a step of the layers may take with the given number of samples."""
LEAST_LENGTH = 16
"""Tokens of a sample that is shortened."""


def report(text: str) -> None:
    """Say what is timed next."""
    print(f"{PROGRESS}{text}", file=sys.stderr, flush=True)


def sample_counts(batch: int) -> list[int]:
    """Return the numbers of samples to time, which differ by a factor of four."""
    # Kernels multiply blocks of rows: between two near numbers it counts where a block ends.
    return sorted({max(batch // 2, 1), batch, 2 * batch})


class DeviceClock:
    """Times functions, with the device's work done."""

    def __init__(self, torch: Any, device: Any, *, processor_time: bool = False) -> None:
        self._wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        self._now = time.process_time if processor_time else time.perf_counter

    def seconds(
        self, function: Callable[[], Any], times: int, limit_s: float = LIMIT_S
    ) -> list[float]:
        """Run it twice for nothing, then at most ``times`` times; return what each took."""
        ends = time.monotonic() + limit_s
        for _ in range(2):
            function()
        taken: list[float] = []
        while len(taken) < times and (len(taken) < LEAST_TIMES or time.monotonic() < ends):
            self._wait()
            begun = self._now()
            function()
            self._wait()
            taken.append(self._now() - begun)
        return taken


def transformer_layer(torch: Any, spec: dict[str, Any]) -> Any:
    """Make a layer of the given shape."""
    nn, functional = torch.nn, torch.nn.functional
    hidden, heads, kv_heads, ffn = (spec[name] for name in ("hidden", "heads", "kv_heads", "ffn"))
    size = hidden // heads

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.queries = nn.Linear(hidden, heads * size)
            self.keys = nn.Linear(hidden, kv_heads * size)
            self.values = nn.Linear(hidden, kv_heads * size)
            self.mixed = nn.Linear(heads * size, hidden)
            self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
            self.gate = nn.Linear(hidden, ffn) if spec["gated"] else None

        def forward(self, states: Any) -> Any:
            batch, length, _ = states.shape
            inputs = self.first(states)
            parts = [
                part(inputs).view(batch, length, -1, size).transpose(1, 2)
                for part in (self.queries, self.keys, self.values)
            ]
            if heads != kv_heads:
                parts[1:] = [part.repeat_interleave(heads // kv_heads, 1) for part in parts[1:]]
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
            states = states + self.mixed(mixed.transpose(1, 2).reshape(batch, length, -1))
            inputs = self.second(states)
            inner = self.up(inputs)
            if self.gate is None:
                return states + self.down(functional.gelu(inner))
            return states + self.down(functional.silu(self.gate(inputs)) * inner)

    return Layer()


def layer_flops(spec: dict[str, Any], samples: int) -> float:
    """Count the operations of a layer, forward and backward; the latter repeats the scores."""
    hidden, length = spec["hidden"], spec["sequence"]
    kv_width = hidden // spec["heads"] * spec["kv_heads"]
    matrices = 2 * hidden * (hidden + kv_width)
    matrices += (3 if spec["gated"] else 2) * hidden * spec["ffn"]
    return float(samples * length * (6 * matrices + 16 * length * hidden))


def time_layers(torch: Any, clock: DeviceClock, spec: dict[str, Any], place: dict[str, Any]) -> Any:
    """Time two layers of a transformer, and return the result and the layers."""
    layers = torch.nn.Sequential(*(transformer_layer(torch, spec) for _ in range(LAYERS)))
    layers = layers.to(**place)
    runs = []
    for samples in sample_counts(spec["batch"]):
        report(f"two layers, {samples} samples of {spec['sequence']} tokens")
        states = torch.randn(samples, spec["sequence"], spec["hidden"], **place)
        states.requires_grad_()

        def step(states: Any = states) -> None:
            layers.zero_grad()
            layers(states).sum().backward()

        seconds = clock.seconds(step, STEPS)
        flops = LAYERS * layer_flops(spec, samples)
        runs.append({"samples": samples, "flops": flops, "seconds": seconds})
    return {"count": LAYERS, "runs": runs}, layers


def beside(name: str) -> Any:
    """Import the file ``name`` of this folder; the standard library has a ``trace``, too."""
    file = Path(__file__).with_name(f"{name}.py")
    module_spec = importlib.util.spec_from_file_location(f"gangline_{name}", file)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def time_model(torch: Any, clock: DeviceClock, spec: dict[str, Any], place: dict[str, Any]) -> Any:
    """Time the complete model of FILE:FUNCTION, and return the result and the model."""
    tracing = beside("trace")
    made = tracing.load(spec["trace"])()
    model = (made[0] if isinstance(made, tuple) else made).to(device=place["device"])
    runs = []
    for samples in sample_counts(spec["batch"]):
        report(f"the model, {samples} samples")
        shape = [samples, *spec["input"][1:]]
        inputs = (
            torch.zeros(shape, dtype=torch.long, device=place["device"])
            if spec["tokens"]
            else torch.rand(shape, device=place["device"])
        )

        def step(inputs: Any = inputs) -> None:
            model.zero_grad()
            tracing.scalar(torch, model(inputs)).backward()

        try:
            seconds = clock.seconds(step, STEPS)
        except torch.cuda.OutOfMemoryError:
            if samples <= spec["batch"]:
                raise
            break  # the user's batch may be the largest that fits
        flops = spec["sample_flops"] * samples
        runs.append({"samples": samples, "flops": flops, "seconds": seconds})
    return {"count": 1, "runs": runs}, model


def time_output(torch: Any, clock: DeviceClock, spec: dict[str, Any], place: dict[str, Any]) -> Any:
    """Time the output layer and the loss; None without a vocabulary."""
    if not spec.get("vocab"):
        return None
    report("the output layer and the loss")
    output = torch.nn.Linear(spec["hidden"], spec["vocab"], bias=False, **place)
    tokens = spec["batch"] * spec["sequence"]
    states = torch.randn(tokens, spec["hidden"], requires_grad=True, **place)
    labels = torch.zeros(tokens, dtype=torch.long, device=place["device"])

    def step() -> None:
        output.zero_grad()
        torch.nn.functional.cross_entropy(output(states).float(), labels).backward()

    flops = 6.0 * tokens * spec["hidden"] * spec["vocab"]
    return {"flops": flops, "seconds": clock.seconds(step, STEPS)}


def time_update(torch: Any, clock: DeviceClock, model: Any, ranks: int, parameters: int) -> Any:
    """Time AdamW on the slice, and the copies of its gradients to and from buckets.

    A tensor is added where the model has more parameters than the slice: states that fit into the
    caches are updated several times as fast.
    """
    report("the optimizer")
    updated = [parameter for parameter in model.parameters() if parameter.grad is not None]
    missing = min(parameters, UPDATED) - sum(parameter.numel() for parameter in updated)
    if missing > 0:
        rest = torch.nn.Parameter(torch.zeros(missing).to(updated[0]))
        rest.grad = torch.zeros_like(rest)
        updated.append(rest)
    optimizer = torch.optim.AdamW(updated)
    gradients = [parameter.grad for parameter in updated]
    sizes = [gradient.numel() for gradient in gradients]

    def step() -> None:
        if ranks > 1:
            bucket = torch.cat([gradient.reshape(-1) for gradient in gradients]).div_(ranks)
            for gradient, part in zip(gradients, bucket.split(sizes), strict=True):
                gradient.copy_(part.view_as(gradient))
        optimizer.step()

    return {"parameters": sum(sizes), "seconds": clock.seconds(step, STEPS)}


def time_copy(torch: Any, clock: DeviceClock, place: dict[str, Any]) -> Any:
    """Time a copy into new memory."""
    source = torch.zeros(COPIED // 4, device=place["device"])
    return {"bytes": COPIED, "seconds": clock.seconds(source.clone, STEPS)}


def time_product(torch: Any, clock: DeviceClock, place: dict[str, Any]) -> Any:
    """Time a large matrix product, whose speed counts as the device's peak."""
    report("a large product")
    size = PRODUCT * 4 if place["device"].type == "cuda" else PRODUCT // 2
    left, right = torch.randn(size, size, **place), torch.randn(size, size, **place)
    return {"flops": 2.0 * size**3, "seconds": clock.seconds(lambda: left @ right, STEPS)}


def time_sweep(torch: Any, clock: DeviceClock, place: dict[str, Any]) -> list[Any]:
    """Time all-reduces of several sizes."""
    runs = []
    for size in SWEEP:
        report(f"an all-reduce of {size >> 10} KiB")
        tensor = torch.zeros(size // 4, device=place["device"])
        reduce = partial(torch.distributed.all_reduce, tensor)
        seconds = clock.seconds(reduce, STEPS, float("inf"))  # as often on all ranks
        runs.append({"bytes": size, "seconds": seconds})
    return runs


def shortened(torch: Any, spec: dict[str, Any], product: Any, ranks: int) -> dict[str, Any]:
    """Return the slice with as many tokens as its layers compute in ``STEP_S``."""
    rate = torch.tensor(product["flops"] / min(product["seconds"]))
    if ranks > 1:  # the slowest decides for all
        rate = rate.to("cuda") if torch.distributed.get_backend() == "nccl" else rate
        torch.distributed.all_reduce(rate, op=torch.distributed.ReduceOp.MIN)
    token = LAYERS * layer_flops(spec, 1) / spec["sequence"]
    most = STEP_S * float(rate) / token
    batch = min(spec["batch"], 2) if spec["batch"] * spec["sequence"] > most else spec["batch"]
    length = min(spec["sequence"], max(int(most) // batch // LEAST_LENGTH, 1) * LEAST_LENGTH)
    return {**spec, "batch": batch, "sequence": length}


def measure(torch: Any, given: argparse.Namespace, spec: dict[str, Any]) -> dict[str, Any]:
    """Measure everything; return the content of the calibration's file."""
    cuda = torch.cuda.is_available() and not spec.get("cpu")
    device = torch.device("cuda", given.rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        memory, name = torch.cuda.mem_get_info(device)[1], torch.cuda.get_device_name(device)
    else:
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) // given.ranks, 1))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // given.ranks
        name = "CPU"
    place = {"device": device, "dtype": torch.bfloat16 if spec["element"] == 2 else torch.float32}
    clock = DeviceClock(torch, device, processor_time=bool(spec.get("processor_time")))
    if given.ranks > 1:
        store = torch.distributed.FileStore(given.store, given.ranks)
        backend = "nccl" if cuda else "gloo"
        torch.distributed.init_process_group(
            backend, store=store, rank=given.rank, world_size=given.ranks
        )
        torch.distributed.barrier()
    product = time_product(torch, clock, place)
    if "trace" not in spec:
        spec = shortened(torch, spec, product, given.ranks)
    time_slice = time_model if "trace" in spec else time_layers
    layers, model = time_slice(torch, clock, spec, place)
    content = {
        "format": "gangline.dev/calibration",
        "version": 1,
        "device": name,
        "devices": given.ranks,
        "memory_bytes": memory,
        "element": spec["element"],
        "slice": spec,
        "product": product,
        "layers": layers,
        "output": time_output(torch, clock, spec, place),
        "update": time_update(torch, clock, model, given.ranks, spec.get("parameters", 0)),
        "copy": time_copy(torch, clock, place),
        "all_reduce": time_sweep(torch, clock, place) if given.ranks > 1 else [],
    }
    if given.ranks > 1:
        torch.distributed.barrier()
    return content


def main() -> int:
    """Measure, and print the result of rank 0."""
    parser = argparse.ArgumentParser(prog="timed_slice.py", allow_abbrev=False)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--store", default="", help="file by which the processes find each other")
    parser.add_argument("spec", help="JSON: the slice")
    given = parser.parse_args()
    try:
        import torch
        import torch.distributed

        # A processor computes with denormal numbers a hundred times slower. Made-up inputs often
        # lead to gradients near zero; those of a training are not.
        torch.set_flush_denormal(True)
        content = measure(torch, given, json.loads(given.spec))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_REFUSED
    if given.rank == 0:
        print(json.dumps(content), flush=True)
    # Threads of gloo that still run when the interpreter ends abort the process now and then.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
