"""What programs do with the official Python client: usage: official.py NAMESPACE."""

import sys

from kubernetes import client, config, dynamic, watch
from kubernetes.stream import stream

SPACE = sys.argv[1]
MAP = {"metadata": {"name": "watched", "labels": {"round": "first"}}, "data": {"a": "1"}}
POD = {
    "metadata": {"name": "counts"},
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": "busybox:1",
                "command": ["sh", "-c", "for i in 1 2 3; do sleep 0.3; echo line $i; done"],
            }
        ],
    },
}

config.load_kube_config()
core = client.CoreV1Api()


def watches() -> None:
    core.create_namespaced_config_map(SPACE, MAP)
    seen = []
    watching = watch.Watch()
    for event in watching.stream(
        core.list_namespaced_config_map, SPACE, label_selector="round", timeout_seconds=30
    ):
        seen.append(event["type"])
        if event["type"] == "ADDED":
            core.patch_namespaced_config_map("watched", SPACE, {"data": {"a": "2"}})
        elif event["type"] == "MODIFIED":
            core.delete_namespaced_config_map("watched", SPACE)
        else:
            watching.stop()
    assert seen == ["ADDED", "MODIFIED", "DELETED"], seen


def follows() -> None:
    core.create_namespaced_pod(SPACE, POD)
    watching = watch.Watch()
    for event in watching.stream(core.list_namespaced_pod, SPACE, timeout_seconds=60):
        if event["object"].metadata.name == "counts" and event["object"].status.phase != "Pending":
            watching.stop()
    answer = core.read_namespaced_pod_log("counts", SPACE, follow=True, _preload_content=False)
    lines = b"".join(answer.stream()).decode().splitlines()
    assert lines == ["line 1", "line 2", "line 3"], lines
    # Client 36 returns the text as bytes.
    answer = core.read_namespaced_pod_log("counts", SPACE, timestamps=True, _preload_content=False)
    assert answer.data.startswith(b"20"), answer.data


def executes() -> None:
    output = stream(
        core.connect_get_namespaced_pod_exec, "talker", SPACE, command=["sh", "-c", "echo here"],
        stderr=True, stdin=False, stdout=True, tty=False,
    )  # fmt: skip
    assert output == "here\n", output


def patches() -> None:
    core.create_namespaced_config_map(SPACE, {**MAP, "metadata": {"name": "patched"}})
    for body in (
        [{"op": "add", "path": "/data/b", "value": "json"}],
        {"data": {"c": "strategic or merge"}},
    ):
        core.patch_namespaced_config_map("patched", SPACE, body)
    data = core.read_namespaced_config_map("patched", SPACE).data
    assert data == {"a": "1", "b": "json", "c": "strategic or merge"}, data


def applies() -> None:
    maps = dynamic.DynamicClient(client.ApiClient()).resources.get(
        api_version="v1", kind="ConfigMap"
    )
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}}
    maps.server_side_apply(
        namespace=SPACE, name="applied", body={**body, "data": {"a": "1"}}, field_manager="one"
    )
    code = 200
    try:
        maps.server_side_apply(
            namespace=SPACE, name="applied", body={**body, "data": {"a": "2"}}, field_manager="two"
        )
    except client.ApiException as error:
        code = error.status
    assert code == 409, "two managers own one field"


def pages() -> None:
    for number in range(5):
        core.create_namespaced_config_map(
            SPACE, {"metadata": {"name": f"page-{number}", "labels": {"pages": "yes"}}}
        )
    names, token = [], None
    while token != "":
        page = core.list_namespaced_config_map(
            SPACE, label_selector="pages", limit=2, **({"_continue": token} if token else {})
        )
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue or ""
    assert names == [f"page-{number}" for number in range(5)], names


for step in (watches, follows, executes, patches, applies, pages):
    step()
    print(step.__name__, flush=True)
