"""Which release of gangline this is, for people who compare two ends that do not agree."""

from functools import cache


@cache
def release() -> str:
    """Return the version of the installed distribution; empty when it runs from elsewhere."""
    # Costs some milliseconds to import, and only an end that greets another one needs it.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("gangline")
    except PackageNotFoundError:
        return ""
