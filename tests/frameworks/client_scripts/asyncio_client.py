"""What programs do with kubernetes_asyncio: usage: asyncio_client.py NAMESPACE."""

import asyncio
import sys

from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.stream import WsApiClient

SPACE = sys.argv[1]
MAP = {"metadata": {"name": "watched", "labels": {"round": "first"}}, "data": {"a": "1"}}


async def watches(core: client.CoreV1Api) -> None:
    await core.create_namespaced_config_map(SPACE, MAP)
    seen = []
    async with watch.Watch().stream(
        core.list_namespaced_config_map, SPACE, label_selector="round", timeout_seconds=30
    ) as events:
        async for event in events:
            seen.append(event["type"])
            if event["type"] == "ADDED":
                await core.patch_namespaced_config_map("watched", SPACE, {"data": {"a": "2"}})
            elif event["type"] == "MODIFIED":
                await core.delete_namespaced_config_map("watched", SPACE)
            else:
                break
    assert seen == ["ADDED", "MODIFIED", "DELETED"], seen


async def follows(core: client.CoreV1Api) -> None:
    answer = await core.read_namespaced_pod_log(
        "talker", SPACE, follow=True, _preload_content=False
    )
    lines = []
    async for line in answer.content:
        lines.append(line.decode().strip())
        if len(lines) == 6:
            break
    answer.close()
    assert lines == [f"line {number}" for number in range(1, 7)], lines


async def executes(core: client.CoreV1Api) -> None:
    async with WsApiClient() as streams:
        output = await client.CoreV1Api(streams).connect_get_namespaced_pod_exec(
            "talker", SPACE, command=["sh", "-c", "echo here"], stderr=True, stdin=False,
            stdout=True, tty=False,
        )  # fmt: skip
    assert output == "here\n", output


async def patches(core: client.CoreV1Api) -> None:
    await core.create_namespaced_config_map(SPACE, {**MAP, "metadata": {"name": "patched"}})
    added = [{"op": "add", "path": "/data/b", "value": "json"}]
    await core.patch_namespaced_config_map("patched", SPACE, added)
    await core.patch_namespaced_config_map("patched", SPACE, {"data": {"c": "strategic"}})
    await core.patch_namespaced_config_map(
        "patched", SPACE, {"data": {"a": None}}, _content_type="application/merge-patch+json"
    )
    data = (await core.read_namespaced_config_map("patched", SPACE)).data
    assert data == {"b": "json", "c": "strategic"}, data


async def applies(core: client.CoreV1Api) -> None:
    async def apply(value: str, manager: str, **more: bool) -> int:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}}
        try:
            await core.patch_namespaced_config_map(
                "applied",
                SPACE,
                {**body, "data": {"a": value}},
                field_manager=manager,
                _content_type="application/apply-patch+yaml",
                **more,
            )
        except client.ApiException as error:
            return error.status
        return 200

    assert await apply("1", "one") == 200
    assert await apply("2", "two") == 409, "two managers own one field"
    assert await apply("2", "two", force=True) == 200
    found = await core.read_namespaced_config_map("applied", SPACE)
    assert found.data == {"a": "2"}, found.data


async def pages(core: client.CoreV1Api) -> None:
    for number in range(5):
        meta = {"name": f"page-{number}", "labels": {"pages": "yes"}}
        await core.create_namespaced_config_map(SPACE, {"metadata": meta})
    names, token = [], None
    while token != "":
        more = {"_continue": token} if token else {}
        page = await core.list_namespaced_config_map(SPACE, label_selector="pages", limit=2, **more)
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue or ""
    assert names == [f"page-{number}" for number in range(5)], names


async def main() -> None:
    await config.load_kube_config()
    async with client.ApiClient() as connected:
        core = client.CoreV1Api(connected)
        for step in (watches, follows, executes, patches, applies, pages):
            await step(core)
            print(step.__name__, flush=True)


asyncio.run(main())
