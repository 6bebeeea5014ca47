"""What programs do with lightkube: usage: lightkube_client.py NAMESPACE."""

import sys

from lightkube import ApiError, Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap
from lightkube.types import PatchType

SPACE = sys.argv[1]
client = Client(namespace=SPACE, field_manager="one")


def watches() -> None:
    meta = ObjectMeta(name="watched", labels={"round": "first"})
    client.create(ConfigMap(metadata=meta, data={"a": "1"}))
    seen = []
    for event, _ in client.watch(ConfigMap, labels={"round": "first"}):
        seen.append(event)
        if event == "ADDED":
            client.patch(ConfigMap, "watched", {"data": {"a": "2"}})
        elif event == "MODIFIED":
            client.delete(ConfigMap, "watched")
        else:
            break
    assert seen == ["ADDED", "MODIFIED", "DELETED"], seen


def follows() -> None:
    lines = []
    for line in client.log("talker", follow=True):
        lines.append(line.strip())
        if len(lines) == 6:
            break
    assert lines == [f"line {number}" for number in range(1, 7)], lines


def executes() -> None:
    done = client.exec("talker", command=["sh", "-c", "cat; exit 3"], stdin="here", stdout=True)
    assert (done.stdout, done.exit_code) == ("here", 3), done


def patches() -> None:
    client.create(ConfigMap(metadata=ObjectMeta(name="patched"), data={"a": "1"}))
    added = [{"op": "add", "path": "/data/b", "value": "json"}]
    client.patch(ConfigMap, "patched", added, patch_type=PatchType.JSON)
    client.patch(ConfigMap, "patched", {"data": {"c": "m"}}, patch_type=PatchType.MERGE)
    data = client.get(ConfigMap, "patched").data
    assert data == {"a": "1", "b": "json", "c": "m"}, data


def applies() -> None:
    def applied(value: str) -> ConfigMap:
        return ConfigMap(
            apiVersion="v1", kind="ConfigMap", metadata=ObjectMeta(name="applied"),
            data={"a": value},
        )  # fmt: skip

    client.apply(applied("1"))
    code = 200
    try:
        client.apply(applied("2"), field_manager="two")
    except ApiError as error:
        code = error.status.code
    assert code == 409, "two managers own one field"


def pages() -> None:
    for number in range(5):
        meta = ObjectMeta(name=f"page-{number}", labels={"pages": "yes"})
        client.create(ConfigMap(metadata=meta))
    listed = client.list(ConfigMap, labels={"pages": "yes"}, chunk_size=2)
    names = [each.metadata.name for each in listed]
    assert names == [f"page-{number}" for number in range(5)], names


for step in (watches, follows, executes, patches, applies, pages):
    step()
    print(step.__name__, flush=True)
