"""A seeded order without a list: the record or shard at a position of an epoch.

A Feistel network over the smallest even power of two that holds all positions, applied repeatedly
until the result is in range, is a permutation that needs no memory and no preparation. Master and
workers compute the same one from seed and epoch, on every Python version, for a billion records as
for ten.
"""

from functools import lru_cache
from hashlib import blake2b

_ROUNDS = 6
_MASK_64 = (1 << 64) - 1
_MULTIPLIER = 0xD6E8FEB86659FD93
"""An odd number whose product spreads every input bit over the upper half of the result."""


def permuted_position(position: int, size: int, seed: int, epoch: int) -> int:
    """Return the element at ``position`` in the order of ``epoch``; both lie in [0, ``size``)."""
    if size < 2:
        return position
    half = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    keys = _round_keys(seed, epoch)
    value = position
    while True:
        left, right = value >> half, value & mask
        for key in keys:
            mixed = ((right ^ key) * _MULTIPLIER) & _MASK_64
            mixed = ((mixed ^ (mixed >> 32)) * _MULTIPLIER) & _MASK_64
            left, right = right, left ^ (mixed >> 32 & mask)
        value = left << half | right
        if value < size:
            return value


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    digest = blake2b(f"{seed}:{epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return tuple(int.from_bytes(digest[i : i + 8], "big") for i in range(0, len(digest), 8))
