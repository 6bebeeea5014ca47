"""Our definitions beside upstream's: what differs has a reason in ``upstream_definitions.toml``."""

import tomllib
from copy import deepcopy

import yaml

from gangline.api import crd
from unit.tool_modules import load_tool

compare = load_tool("compare_definitions")
RECORD = tomllib.loads(compare.RECORD.read_text())


def test_each_difference_from_upstream_has_a_reason_and_each_reason_a_difference() -> None:
    theirs = compare.recorded_facts(RECORD)
    assert compare.our_facts().keys() == theirs.keys() | set(RECORD["own_definitions"])
    found = list(compare.differences(compare.our_facts(), theirs))
    assert compare.unexplained(found, RECORD) == ([], [])


def test_definitions_of_a_file_are_compared_in_place_of_the_record(tmp_path, capsys) -> None:
    manifest = deepcopy(crd.crd_manifests()["trainer.kubeflow.org_trainjobs"])
    (version,) = manifest["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    fields["suspend"]["default"] = True
    fields["runtimeRef"]["required"] = []
    fields["runPolicy"] = {"type": "object"}
    file = tmp_path / "upstream.yaml"
    file.write_text(yaml.safe_dump(manifest))
    assert compare.main([str(file)]) == 1
    name = "trainjobs.trainer.kubeflow.org/v1alpha1"
    assert capsys.readouterr().out.splitlines() == [
        f"{name} default spec.suspend: False, upstream True",
        f"{name} field spec.runPolicy: None, upstream True",
        f"{name} required spec.runtimeRef.name: True, upstream None",
    ]
