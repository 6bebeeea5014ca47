"""Keyed digests: what is compared without being stored, and keys of the levels of similarity."""

import hashlib
import math
from typing import Final

import msgspec

from gangline.brain.facts.records import Job

MODEL_BUCKET: Final = 0.7
"""Natural logarithm of the ratio of parameters within one key of the model."""


class Keys:
    """Digests with the secret of one database: equal values match within it only."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def digest(self, *parts: object) -> str:
        """Digest of ``parts`` as 32 hexadecimal characters."""
        return self._hash(parts, 16).hexdigest()

    def number(self, *parts: object) -> int:
        """Digest of ``parts`` as a positive integer of 63 bits, for an index."""
        return int.from_bytes(self._hash(parts, 8).digest(), "big") >> 1

    def family(self, job: Job) -> str:
        """Level 1: namespace, kind, owner, stem, image repository and command."""
        return self.digest("family", *_family(job), job.owner, job.command_digest)

    def specification(self, job: Job) -> int | None:
        """Level 0: the same specification by the same owner; None if it has no digest."""
        if not job.spec_digest:
            return None
        parts = (job.cluster, job.namespace, job.kind, job.owner, job.spec_digest)
        return self.number("spec", *parts)

    def base(self, job: Job) -> int:
        """Level 2: the family without its command, of any owner."""
        return self.number("base", *_family(job))

    def image(self, job: Job) -> int | None:
        """Level 3: the same image repository, kind and strategy; None without an image."""
        repository = job.image.repository
        if not repository:
            return None
        return self.number("image", job.cluster, job.namespace, repository, job.kind, job.strategy)

    def model(self, job: Job, shift: int = 0) -> int | None:
        """Level 4: devices, and parameters within a factor of two; None if one is not known.

        ``shift`` asks for the key of a neighbouring range of parameters.
        """
        parameters = job.model.parameters if job.model else None
        device = gpu_model(job)
        if not parameters or not device:
            return None
        bucket = math.floor(math.log(parameters) / MODEL_BUCKET) + shift
        return self.number("model", job.cluster, device, bucket)

    def _hash(self, parts: tuple[object, ...], size: int) -> "hashlib.blake2b":
        text = msgspec.json.encode(parts)
        return hashlib.blake2b(text, digest_size=size, key=self._secret)


def gpu_model(job: Job) -> str:
    """Return the device model of the role that was sized last, as ``advisers.similarity`` does."""
    return next((size.gpu_model for size in reversed(job.roles) if size.gpu_model), "")


def _family(job: Job) -> tuple[str, ...]:
    return (job.cluster, job.namespace, job.kind, job.stem, job.image.repository)
