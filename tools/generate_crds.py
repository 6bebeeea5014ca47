"""Writes deploy/crds and deploy/runtimes from gangline.api; ``--check`` only lists stale files."""

import sys
from pathlib import Path
from typing import Any

import yaml

from gangline.api import crd
from gangline.api.trainer.builtin_runtimes import builtin_runtimes

FOLDER = Path(__file__).parents[1] / "deploy" / "crds"
RUNTIMES = FOLDER.with_name("runtimes")
HEADER = "# Made by tools/generate_crds.py from gangline.api; do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Writes repeated parts in full: some YAML readers do not support anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def rendered() -> dict[Path, str]:
    """The text of each file."""
    definitions = {FOLDER / f"{name}.yaml": each for name, each in crd.crd_manifests().items()}
    runtimes = {RUNTIMES / f"{each['metadata']['name']}.yaml": each for each in builtin_runtimes()}
    return {path: HEADER + _text(each) for path, each in (definitions | runtimes).items()}


def _text(manifest: Any) -> str:
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=160)


def stale() -> list[Path]:
    """Files that differ from the structs, or have no struct any more."""
    expected = rendered()
    changed = [
        path for path, text in expected.items() if not path.exists() or path.read_text() != text
    ]
    present = [*FOLDER.glob("*.yaml"), *RUNTIMES.glob("*.yaml")]
    return changed + [path for path in present if path not in expected]


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    found = stale()
    if "--check" in arguments:
        for path in found:
            print(f"{path} is stale: run tools/generate_crds.py")
        return 1 if found else 0
    for folder in (FOLDER, RUNTIMES):
        folder.mkdir(parents=True, exist_ok=True)
    for path in found:
        path.unlink(missing_ok=True)
    for path, text in rendered().items():
        path.write_text(text)
        print(path, len(text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
