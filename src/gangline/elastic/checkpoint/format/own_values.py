"""Which values are a rank's own: those that have one name and differ between ranks.

PyTorch saves one value for each name. A random state, a counter or the position of a data loader is
another one on each rank, so that all ranks would restore the value of a single rank. Small values
are therefore compared at each save. Where they differ, the first rank saves its value under the
name, which any reader of PyTorch's format finds, and each other rank ``r`` saves its own under
``NAME@rank-r``. Large tensors are not compared here: they are replicas, or sharded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TypeGuard

import torch

from gangline.elastic.checkpoint.format.torch_framing import tensor_bytes

SMALL_BYTES = 1 << 16
"""Tensors in main memory up to this size are compared; the random state of PyTorch has 5,056."""
OF_A_RANK = re.compile(r"(^|\.)random\.rank-\d+(\.|$)")
"""Random states of a ``TrainingState``: each rank saves them under a name of its own."""
_OWN_NAME = re.compile(r"(?P<name>.*)@rank-(?P<rank>\d+)", re.DOTALL)
_DIGEST_BITS = 61
"""Sums of digests stay within a signed integer of 64 bits, in which ranks compare them."""


def own_name(name: str, rank: int) -> str:
    """Return the name under which a rank saves its own value."""
    return f"{name}@rank-{rank}"


def parse_own_name(name: str) -> tuple[str, int] | None:
    """Return the name and the rank of an own value; None for any other name."""
    match = _OWN_NAME.fullmatch(name)
    return (match["name"], int(match["rank"])) if match else None


def is_small_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """True for tensors that are compared."""
    return (
        isinstance(value, torch.Tensor)
        and type(value) in {torch.Tensor, torch.nn.Parameter}
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not value.is_quantized
        and value.nbytes <= SMALL_BYTES
        and (value.numel() == 0 or value.data_ptr() != 0)  # FSDP frees a tensor's memory
    )


def tensor_digest(name: str, value: torch.Tensor) -> int:
    """Return a digest of name, type, shape and content."""
    plain = value.detach().resolve_conj().resolve_neg().contiguous()
    return _digest(f"{name}|{value.dtype}|{tuple(value.shape)}", tensor_bytes(plain))


def value_digest(name: str, pickled: bytes) -> int:
    """Return a digest of a name and a pickled value."""
    return _digest(name, pickled)


def _digest(name: str, content: bytes | memoryview) -> int:
    digest = blake2b(content, digest_size=8, key=blake2b(name.encode(), digest_size=16).digest())
    return int.from_bytes(digest.digest(), "little") % (1 << _DIGEST_BITS)


def summarize(digests: Iterable[int]) -> int:
    """Return one number for a set of digests, whatever their order."""
    return sum(digests) % (1 << _DIGEST_BITS)


def differing_names(by_rank: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the names whose values differ, each with the first rank that has it."""
    first: dict[str, int] = {}
    differing: dict[str, int] = {}
    for rank, digests in enumerate(by_rank):
        for name, digest in digests.items():
            holder = first.setdefault(name, rank)
            if by_rank[holder][name] != digest:
                differing[name] = holder
    return differing


def names_of_all(by_rank: Sequence[Mapping[str, int]]) -> frozenset[str]:
    """Return the names that every rank has."""
    return frozenset.intersection(*(frozenset(digests) for digests in by_rank))
