"""The chart: the rules of the job kinds for clusters other than the embedded one."""

from chart_objects import OFF, chart_objects, rights_of
from gangline.local.apiserver.auth.builtin_roles import builtin_roles


def test_deployed_roles_are_those_of_the_embedded_cluster() -> None:
    objects = chart_objects(operator=OFF, scheduler=OFF)
    deployed = {each["metadata"]["name"]: each for each in objects if "rules" in each}
    embedded = {role["metadata"]["name"]: role for role in builtin_roles()}
    assert deployed.keys() == {name for name in embedded if name.startswith("gangline:")}
    for name, role in deployed.items():
        assert rights_of([role]) == rights_of([embedded[name]])
        prefix = "rbac.authorization.k8s.io/"
        labels = {k: v for k, v in role["metadata"]["labels"].items() if k.startswith(prefix)}
        assert labels
        assert labels.items() <= embedded[name]["metadata"]["labels"].items()
