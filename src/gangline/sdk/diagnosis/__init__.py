"""Why a job failed or does not run.

``inputs`` reads status, pods, events and the ends of logs; ``diagnosis`` finds the root cause;
``symptoms`` recognises lines of logs, ``pending`` recognises why a job has not started. All but
``inputs`` are pure.
"""

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    # The deprecated place of these names: `gangline.sdk.diagnosis` was a module.
    if name not in {"Diagnosis", "Finding", "diagnose"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gangline.sdk.diagnosis import diagnosis  # noqa: PLC0415

    warnings.warn(
        f"{__name__}.{name} is now {diagnosis.__name__}.{name}", DeprecationWarning, stacklevel=2
    )
    return getattr(diagnosis, name)
