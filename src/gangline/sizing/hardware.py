"""Devices and links with their sources, and the bytes that training keeps for each parameter.

Peaks are dense 16-bit matrix products (bfloat16, on V100 and T4 float16) of the vendors' data
sheets. Bus bandwidths are what all-reduce reaches within a node, as ``nccl-tests`` reports it.
"""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum


class Precision(StrEnum):
    """The number formats of a training."""

    FP32 = "fp32"
    AUTOCAST = "autocast"
    """Weights in 32 bits, products in 16: ``torch.autocast``. Casts of the weights are cached."""
    MIXED = "mixed"
    """Weights and gradients in 16 bits, with a master copy in 32: DeepSpeed, Megatron."""
    MIXED_FP32_GRADIENTS = "mixed-fp32-gradients"
    BF16 = "bf16"
    """Everything in 16 bits, the moments too."""


class Optimizer(StrEnum):
    """The optimizer, by the state that it keeps."""

    ADAM = "adam"
    ADAM_8BIT = "adam-8bit"
    ADAFACTOR = "adafactor"
    MOMENTUM = "momentum"
    SGD = "sgd"


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes for each parameter."""

    weights: float
    gradients: float
    optimizer: float
    """Master copy and moments."""
    casts: float = 0.0
    """Copies of the weights in another format, which are not sharded."""
    element: int = 2
    """Bytes of an activation's element."""

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


_WEIGHTS_GRADIENTS_MASTER = {
    Precision.FP32: (4, 4, 0),
    Precision.AUTOCAST: (4, 4, 0),
    Precision.MIXED: (2, 2, 4),
    Precision.MIXED_FP32_GRADIENTS: (2, 4, 4),
    Precision.BF16: (2, 2, 0),
}
_MOMENTS = {
    Optimizer.ADAM: 8.0,
    Optimizer.ADAM_8BIT: 2.0,
    Optimizer.ADAFACTOR: 0.5,
    Optimizer.MOMENTUM: 4.0,
    Optimizer.SGD: 0.0,
}
"""Bytes with moments in 32 bits."""


def state_bytes(precision: Precision, optimizer: Optimizer = Optimizer.ADAM) -> StateBytes:
    """Return the bytes for each parameter."""
    weights, gradients, master = _WEIGHTS_GRADIENTS_MASTER[precision]
    moments = _MOMENTS[optimizer]
    if precision is Precision.BF16 and optimizer in (Optimizer.ADAM, Optimizer.MOMENTUM):
        moments /= 2
    return StateBytes(
        weights,
        gradients,
        master + moments,
        casts=2.0 if precision is Precision.AUTOCAST else 0.0,
        element=4 if precision is Precision.FP32 else 2,
    )


class UnknownDeviceError(ValueError):
    """No device of that name is known; the message names similar ones."""


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Parts of a step that an efficiency alone does not describe; a calibration measures them."""

    pass_s: float = 0.0
    """Seconds that a layer's forward and backward pass takes however few tokens it gets."""
    output_efficiency: float = 1.0
    """Efficiency of the output layer and the loss, as a share of that of the layers."""
    update_s: float = 0.0
    """Seconds that the optimizer takes for each parameter of a rank."""
    copy_s: float = 0.0
    """Seconds that a byte takes which FSDP copies to or from the buffer of an exchange."""


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator, and the node that usually holds it."""

    name: str
    peak_flops: float
    """Operations per second in 16 bits."""
    memory_bytes: float
    efficiency: float
    """Usual share of the peak that training of large models reaches; the centre of the prior."""
    node_devices: int = 8
    bus_bandwidth: float = 20e9
    """Bytes per second of an all-reduce within a node (bus bandwidth)."""
    node_bandwidth: float = 12.5e9
    """Bytes per second that a node sends over its network; all its adapters together."""
    fp32_flops: float = 0.0
    """Operations per second in 32 bits; 0: an eighth of ``peak_flops``."""
    collective_s: float = 0.0
    """Seconds that a collective operation within a node takes however small it is."""
    overlaps: bool = True
    """False where communication takes the processors that compute, as on CPUs."""
    full_reduce: bool = False
    """True where a reduce-scatter sends as much as an all-reduce, as gloo's does."""
    costs: MeasuredCosts = MeasuredCosts()

    def peak(self, element: int) -> float:
        """Operations per second with elements of 2 or 4 bytes."""
        if element == 2:
            return self.peak_flops
        return self.fp32_flops or self.peak_flops / 8


_NVLINK2, _NVLINK3, _NVLINK4, _NVLINK5, _PCIE3, _PCIE4 = 130e9, 230e9, 360e9, 650e9, 10e9, 20e9
_EDR8, _HDR8, _NDR8 = 50e9, 200e9, 400e9

DEVICES = (
    Device("V100-16GB", 125e12, 16e9, 0.40, 8, _NVLINK2, _EDR8, 15.7e12),
    Device("V100-32GB", 125e12, 32e9, 0.40, 8, _NVLINK2, _EDR8, 15.7e12),
    Device("T4", 65e12, 16e9, 0.30, 4, _PCIE3, 12.5e9, 8.1e12),
    Device("A10", 125e12, 24e9, 0.40, 4, _PCIE4, 12.5e9, 31.2e12),
    Device("L4", 121e12, 24e9, 0.40, 4, _PCIE4, 12.5e9, 30.3e12),
    Device("L40S", 362e12, 48e9, 0.35, 8, _PCIE4, 50e9, 91.6e12),
    Device("RTX3090", 71e12, 24e9, 0.40, 4, _PCIE4, 12.5e9, 35.6e12),
    Device("RTX4090", 165e12, 24e9, 0.40, 4, _PCIE4, 12.5e9, 82.6e12),
    Device("A100-40GB", 312e12, 40e9, 0.50, 8, _NVLINK3, _HDR8, 19.5e12),
    Device("A100-80GB", 312e12, 80e9, 0.50, 8, _NVLINK3, _HDR8, 19.5e12),
    Device("A800-80GB", 312e12, 80e9, 0.48, 8, 160e9, _HDR8, 19.5e12),
    Device("H100-80GB", 989.4e12, 80e9, 0.42, 8, _NVLINK4, _NDR8, 67e12),
    Device("H100-PCIE", 756e12, 80e9, 0.40, 8, _PCIE4, _HDR8, 51e12),
    Device("H800-80GB", 989.4e12, 80e9, 0.40, 8, 160e9, _NDR8, 67e12),
    Device("H20", 148e12, 96e9, 0.60, 8, _NVLINK4, _NDR8, 44e12),
    Device("H200", 989.4e12, 141e9, 0.42, 8, _NVLINK4, _NDR8, 67e12),
    Device("B200", 2250e12, 180e9, 0.38, 8, _NVLINK5, _NDR8, 80e12),
    Device("ASCEND-910B", 376e12, 64e9, 0.40, 8, 150e9, _HDR8, 94e12),
)
_DEFAULTS = {
    "V100": "V100-32GB", "A100": "A100-80GB", "H100": "H100-80GB", "A800": "A800-80GB",
    "H800": "H800-80GB", "910B": "ASCEND-910B",
}  # fmt: skip


_UNUSED = re.compile(r"NVIDIA|TESLA|GEFORCE|SXM\d*|HBM\w*|MIG.*")
"""Words in the product names of drivers and node labels that our names have not."""


def find_device(name: str) -> Device:
    """Find a device by its name in any case, such as ``H100`` or ``a100-40gb``.

    The product names of drivers and node labels are known, too: ``NVIDIA-A100-SXM4-80GB``.

    Raises:
        UnknownDeviceError: there is none.
    """
    words = name.upper().replace(" ", "-").replace("_", "-").split("-")
    wanted = "-".join(word for word in words if not _UNUSED.fullmatch(word))
    wanted = _DEFAULTS.get(wanted, wanted)
    for device in DEVICES:
        if device.name == wanted or device.name.replace("-", "") == wanted.replace("-", ""):
            return device
    names = [device.name for device in DEVICES]
    near = get_close_matches(wanted, [*names, *_DEFAULTS], n=3, cutoff=0.5)
    raise UnknownDeviceError(
        f"unknown GPU {name!r}; "
        + (f"did you mean {', '.join(near)}? " if near else "")
        + f"Known: {', '.join(names)}. For another one give its peak and memory"
    )


def node_with(device: Device, devices: int) -> Device:
    """Return the device in a node of which the training has ``devices`` devices only.

    They have their share of the node's network: another group may have the rest of the node.
    """
    share = devices / device.node_devices
    return replace(
        device, node_devices=devices, node_bandwidth=device.node_bandwidth * min(share, 1.0)
    )


def with_overrides(
    device: Device,
    *,
    peak_flops: float | None = None,
    fp32_flops: float | None = None,
    memory_bytes: float | None = None,
    node_devices: int | None = None,
    node_bandwidth: float | None = None,
) -> Device:
    """Return a device with other figures, where they are given."""
    given = {
        "peak_flops": peak_flops,
        "fp32_flops": fp32_flops,
        "memory_bytes": memory_bytes,
        "node_devices": node_devices,
        "node_bandwidth": node_bandwidth,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    return replace(device, **changed)  # type: ignore[arg-type]
