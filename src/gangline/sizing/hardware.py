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
    FP8 = "fp8"
    """As ``MIXED``, with the products of the layers in 8 bits."""


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
    fp8: bool = False
    """True if the products of the layers are computed in 8 bits."""
    offloaded: float = 0.0
    """Bytes of the optimizer's states in host memory, in place of ``optimizer``."""
    adapter_rank: int = 0
    """Rank of the adapters that are trained in place of the model (LoRA); 0: all is trained."""
    frozen: float = 0.0
    """Bytes for each parameter of a model that is not trained."""
    compiled: bool = False
    """True if ``torch.compile`` or hand-written kernels fuse the operations between products."""
    fused_loss: bool = False
    """True if the loss is computed without logits in 32 bits: compiled, chunked or fused."""

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer

    @property
    def quantized(self) -> bool:
        """Whether frozen weights are converted before each product."""
        return 0 < self.frozen < 2


_WEIGHTS_GRADIENTS_MASTER = {
    Precision.FP32: (4, 4, 0),
    Precision.AUTOCAST: (4, 4, 0),
    Precision.MIXED: (2, 2, 4),
    Precision.MIXED_FP32_GRADIENTS: (2, 4, 4),
    Precision.BF16: (2, 2, 0),
    Precision.FP8: (2, 2, 4),
}
_MOMENTS = {
    Optimizer.ADAM: 8.0,
    Optimizer.ADAM_8BIT: 2.0,
    Optimizer.ADAFACTOR: 0.5,
    Optimizer.MOMENTUM: 4.0,
    Optimizer.SGD: 0.0,
}
"""Bytes with moments in 32 bits."""


_FROZEN = {"": 0.0, "lora": 2.0, "qlora": 0.516}
"""Bytes of a frozen parameter: in 16 bits; in NF4 with double quantisation (Dettmers et al., 2023).
"""


def state_bytes(
    precision: Precision,
    optimizer: Optimizer = Optimizer.ADAM,
    *,
    adapter: str = "",
    rank: int = 16,
    offload: bool = False,
    compiled: bool = False,
    fused_loss: bool = False,
) -> StateBytes:
    """Return the bytes for each parameter.

    Args:
        adapter: ``lora`` or ``qlora`` if adapters are trained; empty: the model is.
        rank: of the adapters.
        offload: whether the optimizer and its states are in host memory.
    """
    weights, gradients, master = _WEIGHTS_GRADIENTS_MASTER[precision]
    moments = _MOMENTS[optimizer]
    if precision is Precision.BF16 and optimizer in (Optimizer.ADAM, Optimizer.MOMENTUM):
        moments /= 2
    kept = master + moments
    return StateBytes(
        weights,
        gradients,
        0.0 if offload else kept,
        casts=2.0 if precision is Precision.AUTOCAST else 0.0,
        element=4 if precision is Precision.FP32 else 2,
        fp8=precision is Precision.FP8,
        offloaded=kept if offload else 0.0,
        adapter_rank=rank if adapter else 0,
        frozen=_FROZEN[adapter],
        compiled=compiled,
        fused_loss=fused_loss,
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
class DeviceModel:
    """An accelerator, and the node that usually holds it."""

    name: str
    peak_flops: float
    """Operations per second in 16 bits."""
    memory_bytes: float
    efficiency: float
    """Share of the peak that large matrix products of tuned trainings reach."""
    node_devices: int = 8
    bus_bandwidth: float = 20e9
    """Bytes per second of an all-reduce within a node (bus bandwidth)."""
    node_bandwidth: float = 12.5e9
    """Bytes per second that a node sends over its network; all its adapters together."""
    fp32_flops: float = 0.0
    """Operations per second in 32 bits; 0: an eighth of ``peak_flops``."""
    memory_bandwidth: float = 0.0
    """Bytes per second of its memory; 0: a 160th of ``peak_flops``, as on A100."""
    fp8: bool = False
    """Whether it multiplies in 8 bits, twice as fast as in 16."""
    collective_s: float = 0.0
    """Seconds that a collective operation within a node takes however small it is."""
    overlaps: bool = True
    """False where communication takes the processors that compute, as on CPUs."""
    full_reduce: bool = False
    """True where a reduce-scatter sends as much as an all-reduce, as gloo's does."""
    costs: MeasuredCosts = MeasuredCosts()

    def peak(self, element: int, *, fp8: bool = False) -> float:
        """Operations per second with elements of 2 or 4 bytes, or of 1 byte in products."""
        if element == 2:
            return self.peak_flops * (2 if fp8 else 1)
        return self.fp32_flops or self.peak_flops / 8

    @property
    def attention_efficiency(self) -> float:
        """Share of the peak that the attention of tuned trainings reaches, where all pairs count.

        Newer devices multiply faster than kernels of the attention can feed them.
        """
        return self.efficiency * (0.67 if self.fp8 else 0.74)

    @property
    def memory_rate(self) -> float:
        return self.memory_bandwidth or self.peak_flops / 160


_NVLINK2, _NVLINK3, _NVLINK4, _NVLINK5, _PCIE3, _PCIE4 = 130e9, 230e9, 360e9, 650e9, 10e9, 20e9
_EDR8, _HDR8, _NDR8 = 50e9, 200e9, 400e9
_AMPERE, _HOPPER = 0.78, 0.67

DEVICES = (
    DeviceModel("V100-16GB", 125e12, 16e9, 0.60, 8, _NVLINK2, _EDR8, 15.7e12, 0.9e12),
    DeviceModel("V100-32GB", 125e12, 32e9, 0.60, 8, _NVLINK2, _EDR8, 15.7e12, 0.9e12),
    DeviceModel("T4", 65e12, 16e9, 0.45, 4, _PCIE3, 12.5e9, 8.1e12, 0.32e12),
    DeviceModel("A10", 125e12, 24e9, 0.60, 4, _PCIE4, 12.5e9, 31.2e12, 0.6e12),
    DeviceModel("L4", 121e12, 24e9, 0.55, 4, _PCIE4, 12.5e9, 30.3e12, 0.3e12, fp8=True),
    DeviceModel("L40S", 362e12, 48e9, 0.55, 8, _PCIE4, 50e9, 91.6e12, 0.86e12, fp8=True),
    DeviceModel("RTX3090", 71e12, 24e9, 0.65, 4, _PCIE4, 12.5e9, 35.6e12, 0.94e12),
    DeviceModel("RTX4090", 165e12, 24e9, 0.65, 4, _PCIE4, 12.5e9, 82.6e12, 1.0e12, fp8=True),
    DeviceModel("A100-40GB", 312e12, 40e9, _AMPERE, 8, _NVLINK3, _HDR8, 19.5e12, 1.55e12),
    DeviceModel("A100-80GB", 312e12, 80e9, _AMPERE, 8, _NVLINK3, _HDR8, 19.5e12, 2.0e12),
    DeviceModel("A800-80GB", 312e12, 80e9, _AMPERE, 8, 160e9, _HDR8, 19.5e12, 2.0e12),
    DeviceModel("H100-80GB", 989.4e12, 80e9, _HOPPER, 8, _NVLINK4, _NDR8, 67e12, 3.35e12, fp8=True),
    # Of Meta's Grand Teton, with 500 W: the peak is near that of the H100 NVL.
    DeviceModel("H100-96GB", 835e12, 96e9, _HOPPER, 8, _NVLINK4, _NDR8, 58e12, 2.4e12, fp8=True),
    DeviceModel("H100-PCIE", 756e12, 80e9, 0.55, 8, _PCIE4, _HDR8, 51e12, 2.0e12, fp8=True),
    DeviceModel("H800-80GB", 989.4e12, 80e9, _HOPPER, 8, 160e9, _NDR8, 67e12, 3.35e12, fp8=True),
    DeviceModel("H20", 148e12, 96e9, 0.85, 8, _NVLINK4, _NDR8, 44e12, 4.0e12, fp8=True),
    DeviceModel("H200", 989.4e12, 141e9, _HOPPER, 8, _NVLINK4, _NDR8, 67e12, 4.8e12, fp8=True),
    DeviceModel("B200", 2250e12, 180e9, 0.60, 8, _NVLINK5, _NDR8, 80e12, 8.0e12, fp8=True),
    DeviceModel("ASCEND-910B", 376e12, 64e9, 0.55, 8, 150e9, _HDR8, 94e12, 1.6e12),
)
_DEFAULTS = {
    "V100": "V100-32GB", "A100": "A100-80GB", "H100": "H100-80GB", "A800": "A800-80GB",
    "H800": "H800-80GB", "910B": "ASCEND-910B",
}  # fmt: skip


_UNUSED = re.compile(r"NVIDIA|TESLA|GEFORCE|SXM\d*|HBM\w*|MIG.*")
"""Words in the product names of drivers and node labels that our names have not."""


_SHORT_MEMORY = re.compile(r"(\d)G$")


def find_device(name: str) -> DeviceModel:
    """Find a device by its name in any case, such as ``H100`` or ``a100-40gb``.

    The product names of drivers and node labels are known, too: ``NVIDIA-A100-SXM4-80GB``.

    Raises:
        UnknownDeviceError: there is none.
    """
    words = name.upper().replace(" ", "-").replace("_", "-").split("-")
    wanted = "-".join(word for word in words if not _UNUSED.fullmatch(word))
    wanted = _SHORT_MEMORY.sub(r"\1GB", wanted)
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


def node_with(device: DeviceModel, devices: int) -> DeviceModel:
    """Return the device in a node of which the training has ``devices`` devices only.

    They have their share of the node's network: another group may have the rest of the node.
    """
    share = devices / device.node_devices
    return replace(
        device, node_devices=devices, node_bandwidth=device.node_bandwidth * min(share, 1.0)
    )


def with_overrides(
    device: DeviceModel,
    *,
    peak_flops: float | None = None,
    fp32_flops: float | None = None,
    memory_bytes: float | None = None,
    node_devices: int | None = None,
    node_bandwidth: float | None = None,
) -> DeviceModel:
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
