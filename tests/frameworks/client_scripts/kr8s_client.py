"""What programs do with kr8s: usage: kr8s_client.py NAMESPACE."""

import sys

import kr8s
from kr8s.objects import ConfigMap, Pod

SPACE = sys.argv[1]
MAP = {"metadata": {"name": "watched", "namespace": SPACE, "labels": {"round": "first"}}}


def watches() -> None:
    watched = ConfigMap({**MAP, "data": {"a": "1"}})
    watched.create()
    seen = []
    for event, _ in kr8s.watch("configmaps", namespace=SPACE, label_selector="round"):
        seen.append(event)
        if event == "ADDED":
            watched.patch({"data": {"a": "2"}})
        elif event == "MODIFIED":
            watched.delete()
        else:
            break
    assert seen == ["ADDED", "MODIFIED", "DELETED"], seen


def follows() -> None:
    lines = []
    for line in Pod.get("talker", namespace=SPACE).logs(follow=True):
        lines.append(line)
        if len(lines) == 6:
            break
    assert lines == [f"line {number}" for number in range(1, 7)], lines


def executes() -> None:
    done = Pod.get("talker", namespace=SPACE).exec(["sh", "-c", "echo here"])
    assert done.stdout == b"here\n", done


def patches() -> None:
    meta = {"name": "patched", "namespace": SPACE}
    patched = ConfigMap({"metadata": meta, "data": {"a": "1"}})
    patched.create()
    patched.patch([{"op": "add", "path": "/data/b", "value": "json"}], type="json")
    patched.patch({"data": {"c": "merge", "a": None}})
    data = ConfigMap.get("patched", namespace=SPACE).raw["data"]
    assert data == {"b": "json", "c": "merge"}, data


def pages() -> None:
    for number in range(5):
        meta = {"name": f"page-{number}", "namespace": SPACE, "labels": {"pages": "yes"}}
        ConfigMap({"metadata": meta}).create()
    names = [each.name for each in kr8s.get("configmaps", namespace=SPACE, label_selector="pages")]
    assert sorted(names) == [f"page-{number}" for number in range(5)], names


for step in (watches, follows, executes, patches, pages):
    step()
    print(step.__name__, flush=True)
