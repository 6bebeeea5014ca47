"""The served kinds while definitions come and go."""

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
