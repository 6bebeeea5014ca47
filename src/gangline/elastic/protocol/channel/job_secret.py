"""The secret that all processes of a job share; keys of connections are derived from it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from gangline.elastic.variables import SECRET_VARIABLE

_SHORTEST_SECRET = 16


@dataclass(frozen=True, slots=True)
class JobSecret:
    """The secret of one job."""

    key: bytes
    is_private: bool = True
    """False if it was derived from a name that others may guess."""


def read_job_secret(environment: Mapping[str, str], job: str) -> JobSecret:
    """Read the job's secret from the environment, or derive one from the job's name.

    Raises:
        ValueError: the variable does not hold at least 16 bytes in hexadecimal digits.
    """
    text = environment.get(SECRET_VARIABLE, "")
    if not text:
        return JobSecret(hashlib.sha256(b"gangline job " + job.encode()).digest(), is_private=False)
    try:
        key = bytes.fromhex(text)
    except ValueError as error:
        raise ValueError(f"{SECRET_VARIABLE} must be hexadecimal digits") from error
    if len(key) < _SHORTEST_SECRET:
        raise ValueError(f"{SECRET_VARIABLE} must hold at least {_SHORTEST_SECRET} bytes")
    return JobSecret(key)
