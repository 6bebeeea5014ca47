"""A Python function as a job.

``source`` collects the function with what it uses of its module; ``results`` brings its results
back through the logs; ``job`` builds the manifest. All are pure.
"""

import warnings
from typing import Any

_NAMES = {
    "FunctionJobOptions": "FunctionJobOptions",
    "MAX_SOURCE": "MAX_SOURCE",
    "NotShippable": "UnsupportedFunction",
    "Shape": "FunctionJobOptions",
    "UnsupportedFunction": "UnsupportedFunction",
    "build_function_job": "build_function_job",
    "function_job": "build_function_job",
    "render_script": "render_script",
    "script_of": "render_script",
}


def __getattr__(name: str) -> Any:
    # The deprecated place of these names: `gangline.sdk.functions` was a module.
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gangline.sdk.functions import job  # noqa: PLC0415

    warnings.warn(
        f"{__name__}.{name} is now {job.__name__}.{_NAMES[name]}", DeprecationWarning, stacklevel=2
    )
    return getattr(job, _NAMES[name])
