"""Writes the files of ``deploy`` that are generated from the package; ``--check`` lists stale ones.

``deploy/crds``, ``deploy/jobset`` and ``deploy/runtimes`` are generated from ``gangline.api``, the
alert rules and Grafana boards in ``deploy/monitoring`` from ``gangline.deploy.monitoring``. The
Helm chart has links to all of them.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from gangline.api import crd
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.deploy.monitoring import RULES_FILE, board_files, rules

DEPLOY = Path(__file__).parents[1] / "deploy"
CRDS, RUNTIMES, MONITORING = DEPLOY / "crds", DEPLOY / "runtimes", DEPLOY / "monitoring"
JOB_SET = DEPLOY / "jobset"
HEADER = "# Made by tools/generate_deploy.py; do not edit.\n"
# "Kustomization" and not "kustomization.yaml": "kubectl apply -f FOLDER" takes that for an object.
_KUSTOMIZATION = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"


class _Dumper(yaml.CSafeDumper):
    """Writes repeated parts in full: some YAML readers do not support anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def rendered() -> dict[Path, str]:
    """The text of each file."""
    manifests = {CRDS / f"{name}.yaml": each for name, each in crd.crd_manifests().items()}
    crds = "".join(f"  - {path.name}\n" for path in sorted(manifests))
    manifests[JOB_SET / f"{crd.JOB_SET_FILE}.yaml"] = crd.job_set_manifest()
    manifests |= {
        RUNTIMES / f"{each['metadata']['name']}.yaml": each for each in builtin_runtimes()
    }
    files = {path: _text(each, default_flow_style=None) for path, each in manifests.items()}
    files[CRDS / "Kustomization"] = f"{_KUSTOMIZATION}{crds}"
    files[MONITORING / RULES_FILE] = _text(rules())
    files = {path: HEADER + text for path, text in files.items()}
    return files | {MONITORING / name: text for name, text in board_files().items()}


def _text(content: Any, **style: Any) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=160, **style)


def stale() -> list[Path]:
    """Files that differ from what the package gives, or that nothing in it gives any more."""
    expected = rendered()
    changed = [
        path for path, text in expected.items() if not path.exists() or path.read_text() != text
    ]
    folders = (CRDS, JOB_SET, RUNTIMES, MONITORING)
    present = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return changed + [path for path in present if path not in expected]


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    found = stale()
    if "--check" in arguments:
        for path in found:
            print(f"{path} is stale: run tools/generate_deploy.py")
        return 1 if found else 0
    for path in found:
        path.unlink(missing_ok=True)
    for path, text in rendered().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
