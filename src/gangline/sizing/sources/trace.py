"""Count what one training step of a model needs.

    python trace.py FILE:FUNCTION --input 8x3x224x224

Runs in the interpreter of the model, where Gangline need not be installed: it imports the standard
library and torch only. The model is made on the meta device, so nothing is computed and no memory
is needed; with ``--measure`` it takes two real steps on the GPU, else on the processor, and the
second one is counted. Prints one JSON object.

The function returns a module, or a module and the tuple of its inputs. Without inputs the module
gets one tensor of the given shape: floating-point numbers, or token ids with ``--tokens``.
"""

import argparse
import importlib.util
import json
import sys
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

EXIT_REFUSED = 3
"""The model cannot be traced; the reason is on standard error."""


def load(target: str) -> Any:
    """Import FILE and return its FUNCTION."""
    file, colon, name = target.rpartition(":")
    if not colon or not Path(file).is_file():
        sys.exit(f"--trace: {target!r} is not FILE:FUNCTION of a file that exists")
    sys.path.insert(0, str(Path(file).resolve().parent))
    spec = importlib.util.spec_from_file_location("gangline_traced", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        sys.exit(f"--trace: {file} has no function {name!r}")
    return function


def trace(target: str, shape: list[int], *, tokens: bool, measure: bool = False) -> dict[str, Any]:
    """Trace one step; return the counts."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    function = load(target)
    place = "meta"
    if measure:
        place = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(place):
        made = function()
        model, inputs = made if isinstance(made, tuple) else (made, None)
        if inputs is None:
            kind = torch.long if tokens else torch.get_default_dtype()
            inputs = (torch.zeros(shape, dtype=kind),)
        inputs = tuple(input_.to(place) for input_ in inputs)
    model.train()
    if measure:  # buffers and workspaces are made in the first step
        scalar(torch, model(*inputs)).backward()
        model.zero_grad()
    seen = Operators(torch, flop_registry)
    live = LiveBytes(model)
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def save(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes()
        addressed.append(storage)  # a released storage's address could be used again
        return tensor

    addressed: list[Any] = []
    counter = FlopCounterMode(display=False)
    hooks = torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)
    for input_ in inputs:
        live.add(input_)
    with counter, observed(seen, live), hooks:
        loss = scalar(torch, model(*inputs))
        forward = counter.get_total_flops()
        loss.backward()
    model.zero_grad()
    sizes = [sum(p.numel() for p in part.parameters(recurse=False)) for part in model.modules()]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "batch": inputs[0].shape[0],
        "input_bytes": sum(input_.numel() * input_.element_size() for input_ in inputs),
        "forward_flops": forward,
        "backward_flops": counter.get_total_flops() - forward,
        "saved_bytes": sum(saved.values()),
        "peak_bytes": live.peak(),
        "largest_module": max(sizes, default=0),
        "uncounted_operators": dict(seen.uncounted),
        "coverage": seen.coverage,
    }


def scalar(torch: Any, output: Any) -> Any:
    """Reduce whatever a model returns to a loss."""
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    if isinstance(output, dict):
        output = tuple(output.values())
    elif hasattr(output, "logits"):
        output = output.logits
    if isinstance(output, (tuple, list)):
        output = next(part for part in output if isinstance(part, torch.Tensor))
    return output.sum()


class Operators:
    """Operators without a formula that are no element-wise or view operation."""

    def __init__(self, torch: Any, formulas: Any) -> None:
        self.uncounted: Counter[str] = Counter()
        self._torch, self._formulas = torch, formulas
        self._counted = 0

    @property
    def coverage(self) -> float:
        """Share of the operators with much work that have a formula."""
        counted = self._counted
        return (
            counted / (counted + sum(self.uncounted.values())) if counted or self.uncounted else 1.0
        )

    def see(self, function: Any) -> None:
        """Take note of an operator that runs."""
        packet = function._overloadpacket
        if packet in self._formulas:
            self._counted += 1
        elif not self._is_cheap(function):
            self.uncounted[str(packet)] += 1

    def _is_cheap(self, function: Any) -> bool:
        tags = self._torch.Tag
        if function.is_view or {tags.pointwise, tags.reduction} & set(function.tags):
            return True
        name = function.name().partition("::")[2].partition(".")[0].strip("_")
        return bool(name.startswith(CHEAP) or name.endswith(CHEAP_ENDS))


class LiveBytes:
    """The peak of what exists at one time beside parameters and their gradients."""

    def __init__(self, model: Any) -> None:
        self._changes: list[tuple[int, int]] = []
        """Number of a storage, and the bytes by which the memory grows or shrinks."""
        self._numbers: dict[int, int] = {}
        """The number of each live storage, by its address."""
        self._gradients: set[int] = set()
        for tensor in (*model.parameters(), *model.buffers()):
            self._numbers[tensor.untyped_storage()._cdata] = -1
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._see_gradient)

    def add(self, tensor: Any) -> None:
        """Count the storage of a tensor until it is released."""
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address not in self._numbers:
            number = self._numbers[address] = len(self._changes)
            self._changes.append((number, size))
            weakref.finalize(storage, self._release, address, number, size)

    def peak(self) -> int:
        """Return the most bytes at one time; gradients count with the states of a training."""
        most = now = 0
        for number, change in self._changes:
            if number not in self._gradients:
                now += change
                most = max(most, now)
        return most

    def _release(self, address: int, number: int, size: int) -> None:
        self._numbers.pop(address, None)
        self._changes.append((number, -size))

    def _see_gradient(self, parameter: Any) -> None:
        self._gradients.add(self._numbers.get(parameter.grad.untyped_storage()._cdata, -1))


def observed(operators: Operators, live: LiveBytes) -> Any:
    """Return a mode in which every operator and its outputs are seen."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            operators.see(function)
            outputs = function(*args, **(kwargs or {}))
            for output in tree_leaves(outputs):
                if hasattr(output, "untyped_storage"):
                    live.add(output)
            return outputs

    return Mode()  # type: ignore[no-untyped-call]


CHEAP = (
    "sum", "mean", "max", "min", "amax", "argmax", "softmax", "log_softmax", "native_layer_norm",
    "native_batch_norm", "native_group_norm", "fused_rms_norm", "cudnn_batch_norm", "batch_norm",
    "embedding", "native_dropout", "dropout", "nll_loss", "clone", "copy", "to_copy", "empty",
    "zeros", "ones", "new_", "full", "fill", "zero", "arange", "cat", "stack", "index", "gather",
    "scatter", "slice", "select", "unsafe_view", "view", "reshape", "cumsum", "tril", "triu",
    "topk", "sort", "where", "masked", "bernoulli", "rand", "normal", "uniform", "max_pool",
    "avg_pool", "adaptive", "constant_pad", "roll", "scalar_tensor", "lift", "detach", "expand",
    "var", "std", "norm", "linalg_vector_norm", "threshold", "gelu", "silu", "hardtanh",
    "logsumexp", "one_hot", "histc", "bincount", "searchsorted", "resize", "set", "local_scalar",
    "trunc_normal", "erfinv", "upsample", "im2col", "col2im", "flip", "repeat", "split",
    "safe_softmax", "unsafe_split",
)  # fmt: skip
"""Beginnings of operators whose work is small beside that of matrix products."""
CHEAP_ENDS = ("_backward_data", "pool2d_backward", "norm_backward", "loss_backward")


def main() -> int:
    """Trace, and print the counts."""
    parser = argparse.ArgumentParser(prog="trace.py", allow_abbrev=False)
    parser.add_argument("target", help="FILE:FUNCTION that returns a module")
    parser.add_argument("--input", required=True, help="shape of a batch, such as 8x3x224x224")
    parser.add_argument("--tokens", action="store_true", help="the input is token ids")
    parser.add_argument("--measure", action="store_true", help="take two real steps")
    given = parser.parse_args()
    try:
        shape = [int(size) for size in given.input.split("x")]
    except ValueError:
        sys.exit(f"--input: {given.input!r} is not a shape such as 8x3x224x224")
    try:
        counts = trace(given.target, shape, tokens=given.tokens, measure=given.measure)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_REFUSED
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
