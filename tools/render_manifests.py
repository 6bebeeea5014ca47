"""Renders the Helm chart as plain manifests into a folder, which a release publishes.

``install.yaml`` is everything with default values, CRDs included; that of JobSet is in ``jobset``.
``kustomize`` has a base for each folder of ``deploy/kustomize``: its Kustomization, and the objects
of the chart with its values.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gangline.deploy.chart import Chart, Manifest, ReleaseSettings
from gangline.deploy.manifests import release_objects

DEPLOY = Path(__file__).parents[1] / "deploy"
_NO_CRDS = {"crds": {"install": False}}
# An apply does not ask whether the cluster has JobSet's own.
_NO_JOB_SET = {"crds": {"skip": ["jobsets.jobset.x-k8s.io"]}}
# kubectl refuses objects of a kind whose definition the same command creates: see deploy/runtimes.
_NO_RUNTIMES = {"runtimes": {"install": False}}


class _Dumper(yaml.CSafeDumper):
    """Writes repeated parts in full: some YAML readers do not support anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def render(output: Path) -> None:
    """Write all manifests into a folder."""
    for folder in ("crds", "jobset"):
        shutil.copytree(DEPLOY / folder, output / folder, dirs_exist_ok=True)
    (output / "install.yaml").write_text(_text(_objects(_NO_JOB_SET, namespace=True)))
    for base in sorted((DEPLOY / "kustomize").iterdir()):
        folder = output / "kustomize" / base.name
        folder.mkdir(parents=True, exist_ok=True)
        kustomization = (base / "Kustomization").read_text()
        (folder / "Kustomization").write_text(kustomization)
        values = yaml.safe_load((base / "values.yaml").read_text()) or {}
        # Bases without CRDs go beside another one, or into a namespace that its users choose.
        found = _objects({**values, **_NO_CRDS}, namespace="../../crds" in kustomization)
        (folder / "manifests.yaml").write_text(_text(found))


def _objects(values: Mapping[str, Any], *, namespace: bool) -> list[Manifest]:
    chart = Chart.load()
    complete = chart.complete(values, _NO_RUNTIMES)
    return release_objects(chart, complete, ReleaseSettings(service="kubectl"), namespace=namespace)


def _text(objects: list[Manifest]) -> str:
    return "---\n".join(
        yaml.dump(each, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=160)
        for each in objects
    )


if __name__ == "__main__":
    render(Path(sys.argv[1]))
