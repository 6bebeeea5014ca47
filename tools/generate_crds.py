"""Writes deploy/crds from the structs of gangline.api; with ``--check`` only lists stale files."""

import sys
from pathlib import Path
from typing import Any

import yaml

from gangline.api import crd

FOLDER = Path(__file__).parents[1] / "deploy" / "crds"
HEADER = "# Made by tools/generate_crds.py from gangline.api; do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Writes repeated parts in full: some YAML readers do not support anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def rendered() -> dict[Path, str]:
    """The text of each file."""
    return {
        FOLDER / f"{name}.yaml": HEADER
        + yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=160)
        for name, manifest in crd.crd_manifests().items()
    }


def stale() -> list[Path]:
    """Files that differ from the structs, or have no struct any more."""
    expected = rendered()
    changed = [
        path for path, text in expected.items() if not path.exists() or path.read_text() != text
    ]
    return changed + [path for path in FOLDER.glob("*.yaml") if path not in expected]


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    found = stale()
    if "--check" in arguments:
        for path in found:
            print(f"{path} is stale: run tools/generate_crds.py")
        return 1 if found else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in found:
        path.unlink(missing_ok=True)
    for path, text in rendered().items():
        path.write_text(text)
        print(path, len(text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
