"""The kubectl versions of the tests: 1.20 (Debian bookworm), 1.32 (trixie), and 1.37 from PyPI.

``GANGLINE_KUBECTL_OLD``, ``GANGLINE_KUBECTL_1_32`` and ``GANGLINE_KUBECTL_1_37`` name the programs.
By default the first two are where continuous integration unpacks them with ``tools/old-kubectl``
and ``tools/debian-package``, and the third is installed with the developers' other tools. Without a
1.32, the kubectl on the path stands for it.
"""

import os
import shutil
import sys
from pathlib import Path

OLD = "1.20"
NEWEST = "1.37"
_INSTALLED = Path(sys.executable).parent / "kubectl"


def _program(version: str, variable: str) -> str:
    unpacked = f"/var/cache/gangline-kubectl/{version}/usr/bin/kubectl"
    return os.environ.get(variable) or (unpacked if Path(unpacked).exists() else "")


PROGRAMS = {
    OLD: _program(OLD, "GANGLINE_KUBECTL_OLD"),
    "1.32": _program("1.32", "GANGLINE_KUBECTL_1_32") or shutil.which("kubectl") or "",
    NEWEST: _program(NEWEST, "GANGLINE_KUBECTL_1_37")
    or (str(_INSTALLED) if _INSTALLED.exists() else ""),
}
"""The program of each version; empty if this machine has none."""


def missing_reason(version: str) -> str:
    """Return why the tests of a version are skipped."""
    return f"no kubectl {version}: tools/debian-package and tools/old-kubectl unpack it"
