"""The official Python client against the server: custom kinds, bindings, evictions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import kubernetes
import pytest
from kubernetes.client.exceptions import ApiException

from gangline.local.apiserver.server import ApiServer

WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"}
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {
                            "type": "object",
                            "required": ["colour"],
                            "properties": {
                                "colour": {"type": "string", "enum": ["red", "green"]},
                                "size": {"type": "integer", "minimum": 0, "default": 3},
                            },
                        },
                        "status": {
                            "type": "object", "properties": {"size": {"type": "integer"}}
                        },
                    },
                }},
            },
            {
                "name": "v1beta1",
                "served": True,
                "storage": False,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": True
                }},
            },
        ],
    },
}  # fmt: skip


@pytest.fixture
async def api(api_server: ApiServer) -> AsyncIterator[kubernetes.client.ApiClient]:
    configuration: Any = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(
        str(api_server.kubeconfig), client_configuration=configuration
    )
    client = kubernetes.client.ApiClient(configuration)
    yield client
    client.close()


async def test_custom_kinds_are_served_as_soon_as_they_are_defined(
    api: kubernetes.client.ApiClient,
):
    def steps() -> None:
        extensions = kubernetes.client.ApiextensionsV1Api(api)
        defined = extensions.create_custom_resource_definition(WIDGETS)
        assert {c.type: c.status for c in defined.status.conditions}["Established"] == "True"
        custom = kubernetes.client.CustomObjectsApi(api)
        place = ("example.com", "v1", "default", "widgets")
        body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
                "spec": {"colour": "red", "weight": 7}, "status": {"size": 5}}  # fmt: skip
        made = custom.create_namespaced_custom_object(*place, body)
        assert made["spec"] == {"colour": "red", "size": 3}
        assert "status" not in made
        assert made["metadata"]["generation"] == 1
        custom.patch_namespaced_custom_object_status(*place, "w", {"status": {"size": 2}})
        custom.patch_namespaced_custom_object(
            *place, "w", {"spec": {"size": 4}, "status": {"size": 1}}
        )
        found = custom.get_namespaced_custom_object(*place, "w")
        assert (found["spec"]["size"], found["status"]["size"]) == (4, 2)
        assert found["metadata"]["generation"] == 2
        scaled = custom.get_namespaced_custom_object_scale(*place, "w")
        assert (scaled["spec"]["replicas"], scaled["status"]["replicas"]) == (4, 2)
        other = custom.get_namespaced_custom_object(
            "example.com", "v1beta1", "default", "widgets", "w"
        )
        assert other["apiVersion"] == "example.com/v1beta1"
        wrong = {**body, "metadata": {"name": "x"}, "spec": {"colour": "blue", "size": -1}}
        with pytest.raises(ApiException) as refused:
            custom.create_namespaced_custom_object(*place, wrong)
        assert refused.value.status == 422
        assert "spec.colour" in refused.value.body
        assert "spec.size" in refused.value.body
        extensions.delete_custom_resource_definition("widgets.example.com")

    await asyncio.to_thread(steps)
