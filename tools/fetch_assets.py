"""Fetches the libraries of the dashboard's pages into the package, from the npm registry.

Each is pinned by its version and by the integrity hash that the registry publishes of its archive.
They are not in the repository. The build hook fetches them (``build_native.py``), so ``make setup``
and the wheel have them. Without a network the package still installs, and its pages are complete
but not live; running this program fetches them later.

usage: fetch_assets.py [FOLDER]
"""

import base64
import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "src/gangline/dashboard/static"
TIMEOUT_S = 30

PACKAGES = {
    "https://registry.npmjs.org/htmx.org/-/htmx.org-4.0.1.tgz": (
        "sha512-oF7JgXhDW9UXCy/k1ZYFUQgzu/rm19ORWPSPNL91vPluB2PB9+MV55tyQdH/w7o2EAbTYUG5SDW1R60mdkdqGg==",
        {
            "package/dist/htmx.min.js": "htmx.min.js",
            "package/dist/ext/hx-sse.min.js": "hx-sse.min.js",
            "package/LICENSE": "htmx.license.txt",
        },
    ),
    "https://registry.npmjs.org/uplot/-/uplot-1.6.32.tgz": (
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {
            "package/dist/uPlot.iife.min.js": "uplot.min.js",
            "package/dist/uPlot.min.css": "uplot.min.css",
            "package/LICENSE": "uplot.license.txt",
        },
    ),
}
"""By address: the integrity hash of the archive, and its files with the names that they get."""
NAMES = tuple(name for _, files in PACKAGES.values() for name in files.values())


def check(content: bytes, integrity: str) -> None:
    """Check an archive. Raises ValueError: it is not the one that is pinned."""
    algorithm, _, expected = integrity.partition("-")
    if base64.b64encode(hashlib.new(algorithm, content).digest()).decode() != expected:
        raise ValueError("the archive has another hash than the one that is pinned")


def fetch(folder: Path = FOLDER) -> list[Path]:
    """Fetch the files that are missing, or are of other versions; return all of them.

    Raises:
        OSError, ValueError: an archive cannot be fetched, or is not the one that is pinned.
    """
    stamp = folder / "libraries.txt"
    pinned = "".join(f"{address} {integrity}\n" for address, (integrity, _) in PACKAGES.items())
    paths = [folder / name for name in NAMES]
    is_current = stamp.exists() and stamp.read_text() == pinned
    if is_current and all(path.exists() for path in paths):
        return paths
    for address, (integrity, files) in PACKAGES.items():
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            content = answer.read()
        check(content, integrity)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member, name in files.items():
                file = archive.extractfile(member)
                if file is None:
                    raise ValueError(f"{address} has no {member}")
                (folder / name).write_bytes(file.read())
    stamp.write_text(pinned)
    return paths


def main() -> None:
    """Fetch; a failure is a warning, because pages are complete without scripts."""
    try:
        fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    except (OSError, ValueError) as error:
        print(f"Warning: pages of the dashboard will not be live: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
