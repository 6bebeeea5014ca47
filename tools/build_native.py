"""Build hook: compiles the only part of Gangline that is not Python, and fetches the dashboard's
libraries.

Without a compiler the package still installs, but copies checkpoints more slowly, and needs awscrt
for their checksums (``gangline/elastic/checkpoint/format/checksum.py``). Without a network the
dashboard's pages are complete but not live (``fetch_assets.py``).
"""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.append(str(Path(__file__).parent))
from fetch_assets import fetch

STATIC = Path("src/gangline/dashboard/static")
SOURCE = Path("src/gangline/elastic/checkpoint/format/copy_summed.c")
FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-shared"]


OLDEST_GLIBC = 17
"""Minor version of the oldest glibc that installers know a tag of (PEP 600, manylinux2014)."""


def platform_tag(library: bytes) -> str:
    """Return the wheel's platform: the oldest glibc that has all symbols of ``library``.

    Package indexes accept the ``manylinux`` tags of PEP 600, and no plain ``linux`` tags. A library
    of another C library (musl) has no symbol versions of glibc, and keeps the plain tag.
    """
    needed = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)]
    plain = sysconfig.get_platform().replace("-", "_")
    if not needed or not plain.startswith("linux_"):
        return plain
    return f"manylinux_2_{max(*needed, OLDEST_GLIBC)}_{plain.removeprefix('linux_')}"


class NativeCopy(BuildHookInterface):
    """Compiles beside the source, where an editable installation finds it too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel as one for this platform."""
        del version
        source = Path(self.root, SOURCE)
        library = source.with_suffix(".so")
        if self.target_name != "wheel":
            return
        self._add_libraries(build_data)
        unfinished = library.with_suffix(f".{os.getpid()}.so")
        compiler = shlex.split(os.environ.get("CC", "cc"))
        try:
            subprocess.run([*compiler, *FLAGS, str(source), "-o", str(unfinished)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            library.unlink(missing_ok=True)  # of an older source
            self.app.display_warning(f"checkpoints will be copied more slowly: {error}")
            return
        unfinished.rename(library)  # processes that use an older one keep it
        build_data["artifacts"].append(str(SOURCE.with_suffix(".so")))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(library.read_bytes())}"

    def _add_libraries(self, build_data: dict[str, Any]) -> None:
        try:
            fetched = fetch(Path(self.root, STATIC))
        except (OSError, ValueError) as error:
            self.app.display_warning(f"pages of the dashboard will not be live: {error}")
            return
        build_data["artifacts"] += [str(STATIC / path.name) for path in fetched]
