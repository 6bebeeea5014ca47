"""Strategic merge of pod templates."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gangline.api.trainer.merge import merge, upsert_env

NAMES = st.sampled_from("abc")
CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": NAMES, "image": st.text(max_size=2)}),
    max_size=3,
    unique_by=lambda item: item["name"],
)


def test_containers_are_merged_by_name_and_other_lists_replaced() -> None:
    base = {
        "containers": [{"name": "node", "image": "a", "args": ["1", "2"]}, {"name": "other"}],
        "tolerations": [{"key": "x"}],
    }
    patch = {
        "containers": [{"name": "new"}, {"name": "node", "args": ["3"]}],
        "tolerations": [{"key": "y"}],
    }
    assert merge(base, patch) == {
        "containers": [
            {"name": "node", "image": "a", "args": ["3"]},
            {"name": "other"},
            {"name": "new"},
        ],
        "tolerations": [{"key": "y"}],
    }


def test_null_removes_a_field_at_any_depth() -> None:
    base = {"nodeSelector": {"zone": "a", "disk": "ssd"}, "hostname": "x"}
    patch = {"nodeSelector": {"zone": None}, "hostname": None}
    assert merge(base, patch) == {"nodeSelector": {"disk": "ssd"}}


def test_mounts_are_merged_by_their_path() -> None:
    base = {"volumeMounts": [{"name": "a", "mountPath": "/data"}]}
    patch = {"volumeMounts": [{"name": "b", "mountPath": "/data"}]}
    assert merge(base, patch)["volumeMounts"] == [{"name": "b", "mountPath": "/data"}]


@given(CONTAINERS, CONTAINERS)
def test_merge_changes_neither_argument_and_is_idempotent(
    base: list[dict[str, Any]], patch: list[dict[str, Any]]
) -> None:
    before, change = {"containers": base}, {"containers": patch}
    copies = ([dict(item) for item in base], [dict(item) for item in patch])
    once = merge(before, change)
    assert merge(once, change) == once
    assert (base, patch) == copies
    names = [container["name"] for container in once["containers"]]
    assert sorted(names) == sorted({item["name"] for item in base + patch})


def test_variable_replaces_the_one_of_its_name_in_place() -> None:
    container = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
    changed = upsert_env(container, [{"name": "C", "value": "3"}, {"name": "A", "value": "4"}])
    assert [item["name"] for item in changed["env"]] == ["A", "B", "C"]
    assert changed["env"][0]["value"] == "4"
