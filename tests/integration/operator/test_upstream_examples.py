"""Each example of upstream is accepted, and stored with every field that it sets."""

from typing import Any

import pytest

from gangline.api.job_resources import find_job_kind
from gangline.api.meta.resource import Resource
from gangline.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from gangline.api.validation.validate import check_manifest
from gangline.kube.client.client import ApiClient
from integration.operator.cluster import NAMESPACE, install
from integration.operator.upstream_examples import EXAMPLES, REFUSED


def resource_of(manifest: dict[str, Any]) -> Resource[Any]:
    """The resource of a manifest, as plain data."""
    version, kind = manifest["apiVersion"], manifest["kind"]
    found = find_job_kind(version, kind)
    runtimes = (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
    typed = found.resource if found else next(each for each in runtimes if each.kind == kind)
    return Resource(
        dict,
        typed.group,
        version.partition("/")[2],
        typed.plural,
        kind,
        namespaced=typed.namespaced,
    )


def lost_fields(sent: Any, stored: Any, path: str) -> list[str]:
    """The fields that were sent and are not stored with the same value; defaults may be added."""
    if isinstance(sent, dict):
        given = stored if isinstance(stored, dict) else {}
        return [
            lost
            for name, value in sent.items()
            for lost in lost_fields(value, given.get(name), f"{path}.{name}")
        ]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        pairs = enumerate(zip(sent, stored, strict=True))
        return [lost for n, (a, b) in pairs for lost in lost_fields(a, b, f"{path}[{n}]")]
    return [] if sent == stored else [path]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_has_no_errors_and_no_unknown_fields(name: str) -> None:
    assert check_manifest(EXAMPLES[name], strict=True).errors == []


@pytest.mark.parametrize("name", REFUSED)
def test_example_that_is_refused_names_its_field(name: str) -> None:
    manifest, path = REFUSED[name]
    assert [error.path for error in check_manifest(manifest).errors] == [path]


async def test_server_stores_every_field_of_the_examples(client: ApiClient) -> None:
    await install(client)
    lost: dict[str, list[str]] = {}
    for number, (name, manifest) in enumerate(EXAMPLES.items()):
        resource = resource_of(manifest)
        written = {**manifest, "metadata": {**manifest["metadata"], "name": f"example-{number}"}}
        namespace = NAMESPACE if resource.namespaced else ""
        await client.create(resource, written, namespace)
        stored = await client.get(resource, f"example-{number}", namespace)
        if found := lost_fields(manifest["spec"], stored["spec"], "spec"):
            lost[name] = found
        assert stored["apiVersion"] == manifest["apiVersion"]
    assert lost == {}
