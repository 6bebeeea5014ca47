"""A simulated clock that a file sets, for one process (Debian's faketime)."""

from pathlib import Path

LIBRARIES = tuple(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def variables(clock: Path, offset: str = "+0") -> dict[str, str]:
    """Its environment variables; the file has the offset in seconds: ``+0`` at first.

    The library itself is loaded: the program ``faketime`` starts a child that outlives it.
    """
    (library,) = LIBRARIES
    clock.write_text(offset)
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
