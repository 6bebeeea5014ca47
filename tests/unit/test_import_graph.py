"""No import circle in the source tree: neither of modules nor of folders, and no late one."""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """The modules that each module imports, inside functions and for type checks as well."""
    graph = grimp.build_graph("gangline")
    # A package imports its own modules in order to export them; that is no circle.
    return {
        module: {
            found
            for found in graph.find_modules_directly_imported_by(module)
            if not found.startswith(f"{module}.")
        }
        for module in graph.modules
    }


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_modules_do_not_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    assert find_circle(imports) == []


def test_a_circle_is_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def test_folders_do_not_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    """Siblings of one package form layers: imports between them, all modules below included."""
    packages = {module.rpartition(".")[0] for module in imports} - {""}
    for package in packages:
        depth = package.count(".") + 1
        siblings: dict[str, set[str]] = {}
        for module, found in imports.items():
            if not module.startswith(f"{package}."):
                continue
            own = module.split(".")[depth]
            others = {m.split(".")[depth] for m in found if m.startswith(f"{package}.")}
            siblings.setdefault(own, set()).update(others - {own})
        assert find_circle(siblings) == [], package
