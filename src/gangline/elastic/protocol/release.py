"""The installed release, which two incompatible ends report to the user."""

from functools import cache


@cache
def release() -> str:
    """Return the version of the installed distribution; empty if there is none."""
    # Costs some milliseconds to import, and only an end that greets another one needs it.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("gangline")
    except PackageNotFoundError:
        return ""
