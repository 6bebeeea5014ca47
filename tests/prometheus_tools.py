"""Debian's Prometheus for tests: installed, or unpacked by ``tools/debian-package``."""

import shutil
from pathlib import Path

import pytest

UNPACKED = Path("/var/cache/gangline-prometheus/usr/bin")


def program(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``; skips the test where there is none."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        pytest.skip(f"there is no {name}: Debian's package prometheus has it")
    return found
