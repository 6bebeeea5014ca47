"""``deploy/roles``: the rules of the job kinds for clusters other than the embedded one."""

from pathlib import Path

import yaml

from gangline.local.apiserver.auth.builtin_roles import builtin_roles

FILE = Path(__file__).parents[4] / "deploy" / "roles" / "jobs.yaml"


def test_deployed_roles_are_those_of_the_embedded_cluster() -> None:
    deployed = {role["metadata"]["name"]: role for role in yaml.safe_load_all(FILE.read_text())}
    embedded = {role["metadata"]["name"]: role for role in builtin_roles()}
    assert deployed.keys() == {name for name in embedded if name.startswith("gangline:")}
    for name, role in deployed.items():
        assert role["rules"] == embedded[name]["rules"]
        assert role["metadata"]["labels"].items() <= embedded[name]["metadata"]["labels"].items()
