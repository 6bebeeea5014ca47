"""The served kinds while definitions come and go."""

from dataclasses import replace

from gangline.local.apiserver.core.registry import Registry, all_builtin_kinds


def test_kinds_may_be_added_and_removed_while_they_are_read() -> None:
    first, *others = all_builtin_kinds()
    registry = Registry()
    registry.add([first])
    for kind in registry:
        registry.add(others)
        registry.remove(kind.group, kind.plural)
    assert registry.find(first.group, first.version, first.plural) is None
    assert {kind.plural for kind in registry} == {kind.plural for kind in others}


def test_groups_of_volcano_come_before_those_of_kubernetes() -> None:
    kind = all_builtin_kinds()[0]
    registry = Registry()
    registry.add([*all_builtin_kinds(), replace(kind, group="scheduling.volcano.sh", custom=True)])
    groups = list(registry.groups())
    assert groups[-2:] == ["scheduling.volcano.sh", "scheduling.k8s.io"]
    assert registry.groups()["scheduling.k8s.io"] == ["v1", "v1beta1"]
