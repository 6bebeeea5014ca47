"""Writes the plain manifests of ``deploy`` from the Helm chart; with ``--check`` lists stale files.

``deploy/monitoring`` has the alert rules and Grafana boards, from the tables of
``gangline.deploy.monitoring``; the chart reads them.
``deploy/install.yaml`` is everything with default values. ``deploy/kustomize`` has one base per way
of installing Gangline; each applies as well with ``kubectl apply --server-side -f``.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gangline.deploy.chart import Chart, Manifest, ReleaseSettings
from gangline.deploy.manifests import release_objects
from gangline.deploy.monitoring.files import RULES_FILE, board_files, rules

DEPLOY = Path(__file__).parents[1] / "deploy"
_RULES_HEADER = (
    "# Made by tools/render_manifests.py from gangline.deploy.monitoring; do not edit.\n"
)
HEADER = "# Made by tools/render_manifests.py from deploy/chart; do not edit.\n"
_NO_CRDS = {"crds": {"install": False}}
# kubectl refuses objects of a kind whose definition the same command creates: see deploy/runtimes.
_NO_RUNTIMES = {"runtimes": {"install": False}}
_OFF = {"enabled": False}


class Base(NamedTuple):
    """A kustomize base: what it is for, and the values that it is rendered with."""

    purpose: str
    values: Mapping[str, Any] = {}
    namespace: bool = True
    kustomization: str = "resources: [../../crds, manifests.yaml]\n"


BASES = {
    "default": Base("Operator with webhook, scheduler and CRDs: the chart with default values."),
    "operator-only": Base(
        "Without the scheduler and its CRDs, for clusters where Volcano places gangs.",
        {"scheduler": _OFF, "operator": {"args": ["--gang-scheduler-name=volcano"]}},
        kustomization="""\
resources: [../../crds, manifests.yaml]
# Volcano has its own.
patches:
"""
        + "".join(
            f"""\
  - patch: |
      apiVersion: apiextensions.k8s.io/v1
      kind: CustomResourceDefinition
      metadata: {{name: {name}}}
      $patch: delete
"""
            for name in (
                "podgroups.scheduling.volcano.sh",
                "queues.scheduling.volcano.sh",
                "hypernodes.topology.volcano.sh",
            )
        ),
    ),
    "single-namespace": Base(
        "The operator for the jobs of its own namespace, without any cluster-wide right. It needs\n"
        "# the CRDs of deploy/crds. A kustomization with 'namespace: NAME' moves it.",
        {
            "namespaces": ["gangline-system"],
            "scheduler": _OFF,
            "webhook": _OFF,
            "priorityClass": {"create": False},
            "operator": {"readNodes": False, "readClusterRuntimes": False},
        },
        namespace=False,
        kustomization="namespace: gangline-system\nresources: [manifests.yaml]\n",
    ),
    "embedded-like": Base(
        "One replica of each component, as in 'gangline up': for clusters of one node.",
        {component: {"replicas": 1} for component in ("operator", "scheduler")},
    ),
    "brain": Base(
        "The Brain, beside one of the others. Its image needs gangline[brain].",
        {
            "operator": _OFF,
            "scheduler": _OFF,
            "webhook": _OFF,
            "rbac": {"aggregate": False},
            "priorityClass": {"create": False},
            "brain": {"enabled": True},
        },
        namespace=False,
        kustomization="resources: [manifests.yaml]\n",
    ),
}


class _Dumper(yaml.CSafeDumper):
    """Writes repeated parts in full: some YAML readers do not support anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def rendered() -> dict[Path, str]:
    """The text of each file."""
    chart = Chart.load()
    release = ReleaseSettings(service="kubectl")

    def objects(values: Mapping[str, Any], *, namespace: bool = True) -> list[Manifest]:
        complete = chart.complete(values, _NO_RUNTIMES)
        return release_objects(chart, complete, release, namespace=namespace)

    files = {DEPLOY / "install.yaml": HEADER + _text(objects({}))}
    for name, base in BASES.items():
        folder = DEPLOY / "kustomize" / name
        found = objects({**base.values, **_NO_CRDS}, namespace=base.namespace)
        files[folder / "manifests.yaml"] = HEADER + _text(found)
        files[folder / "Kustomization"] = (
            f"{HEADER}# {base.purpose}\n{_KUSTOMIZATION}{base.kustomization}"
        )
    monitoring = DEPLOY / "monitoring"
    files[monitoring / RULES_FILE] = _RULES_HEADER + yaml.dump(
        rules(), Dumper=_Dumper, sort_keys=False, width=160
    )
    files |= {monitoring / name: text for name, text in board_files().items()}
    crds = "".join(f"  - {path.name}\n" for path in sorted((DEPLOY / "crds").glob("*.yaml")))
    files[DEPLOY / "crds" / "Kustomization"] = f"{HEADER}{_KUSTOMIZATION}resources:\n{crds}"
    return files


# "Kustomization" and not "kustomization.yaml": "kubectl apply -f FOLDER" takes that for an object.
_KUSTOMIZATION = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"


def _text(objects: list[Manifest]) -> str:
    return "---\n".join(
        yaml.dump(each, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=160)
        for each in objects
    )


def stale() -> list[Path]:
    """Files that differ from what the chart renders, or that nothing renders any more."""
    expected = rendered()
    changed = [
        path for path, text in expected.items() if not path.exists() or path.read_text() != text
    ]
    folders = (DEPLOY / "kustomize", DEPLOY / "monitoring")
    present = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return changed + [path for path in present if path not in expected]


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    found = stale()
    if "--check" in arguments:
        for path in found:
            print(f"{path} is stale: run tools/render_manifests.py")
        return 1 if found else 0
    for path in found:
        path.unlink(missing_ok=True)
    for path, text in rendered().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
