"""Objects through the server's API: create, read, list, watch, update, delete."""

import asyncio

import pytest

from gangline.api import resources
from gangline.api.core import core
from gangline.api.meta.objects import ObjectMeta
from gangline.kube import errors
from gangline.kube.client.client import ApiClient


def config_map(name: str, **data: str) -> core.ConfigMap:
    return core.ConfigMap(
        api_version="v1", kind="ConfigMap", metadata=ObjectMeta(name=name), data=data
    )


async def test_what_is_created_can_be_read_and_listed(client: ApiClient):
    created = await client.create(resources.CONFIG_MAPS, config_map("a", x="1"), "default")
    assert created.metadata.uid
    assert created.metadata.creation_timestamp is not None
    read = await client.get(resources.CONFIG_MAPS, "a", "default")
    assert read == created
    listed = await client.list(resources.CONFIG_MAPS, "default")
    assert [item.metadata.name for item in listed.items] == ["a"]


async def test_a_second_creation_under_one_name_is_refused(client: ApiClient):
    await client.create(resources.CONFIG_MAPS, config_map("a"), "default")
    with pytest.raises(errors.AlreadyExists):
        await client.create(resources.CONFIG_MAPS, config_map("a"), "default")


async def test_an_object_needs_a_namespace_that_exists(client: ApiClient):
    with pytest.raises(errors.NotFound, match="nowhere"):
        await client.create(resources.CONFIG_MAPS, config_map("a"), "nowhere")


async def test_an_update_that_is_based_on_an_older_state_is_refused(client: ApiClient):
    first = await client.create(resources.CONFIG_MAPS, config_map("a", x="1"), "default")
    await client.patch(resources.CONFIG_MAPS, "a", {"data": {"x": "2"}}, "default")
    with pytest.raises(errors.Conflict):
        await client.update(resources.CONFIG_MAPS, first, "default")


async def test_a_watch_shows_changes_from_the_revision_on(client: ApiClient):
    await client.create(resources.CONFIG_MAPS, config_map("a"), "default")
    start = (await client.list(resources.CONFIG_MAPS, "default")).resource_version
    await client.patch(resources.CONFIG_MAPS, "a", {"data": {"x": "2"}}, "default")
    await client.create(resources.CONFIG_MAPS, config_map("b"), "default")
    await client.delete(resources.CONFIG_MAPS, "a", "default")
    seen = []
    async with asyncio.timeout(5):
        async for event in client.watch(resources.CONFIG_MAPS, "default", resource_version=start):
            seen.append((event.type, event.object.metadata.name))
            if len(seen) == 3:
                break
    assert seen == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]


async def test_pages_of_a_list_all_show_the_same_revision(client: ApiClient):
    for number in range(7):
        await client.create(resources.CONFIG_MAPS, config_map(f"c{number}"), "default")
    first = await client.request_json(
        "GET", "/api/v1/namespaces/default/configmaps", params={"limit": "3"}
    )
    await client.delete(resources.CONFIG_MAPS, "c5", "default")
    await client.create(resources.CONFIG_MAPS, config_map("c55"), "default")
    names, token = [i["metadata"]["name"] for i in first["items"]], first["metadata"]["continue"]
    assert first["metadata"]["remainingItemCount"] == 4
    while token:
        page = await client.request_json(
            "GET",
            "/api/v1/namespaces/default/configmaps",
            params={"limit": "3", "continue": token},
        )
        names += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert names == [f"c{number}" for number in range(7)]
