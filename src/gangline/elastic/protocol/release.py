"""The installed release, which two incompatible ends report to the user."""

from functools import cache


@cache
def installed_version() -> str:
    """Return the version of the installed distribution; empty if there is none."""
    # The import takes some milliseconds, and only a process that connects needs it.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("gangline")
    except PackageNotFoundError:
        return ""
