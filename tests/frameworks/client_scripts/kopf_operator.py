"""An operator made with kopf: usage: kopf_operator.py NAMESPACE.

It answers a ConfigMap with the label ``ask`` by a finalizer, an annotation, an event and its end.
"""

import asyncio
import sys

import kopf
from kubernetes_asyncio import client, config

SPACE = sys.argv[1]
ASKED = {"metadata": {"name": "asked", "labels": {"ask": "yes"}}, "data": {"a": "1"}}
done: list[str] = []


@kopf.on.create("configmaps", labels={"ask": "yes"})
async def created(patch: kopf.Patch, body: kopf.Body, **_: object) -> None:
    patch.metadata.annotations["answer"] = "yes"
    kopf.info(body, reason="Answered", message="the answer is yes")
    done.append("watches")


@kopf.on.update("configmaps", labels={"ask": "yes"}, field="data.a", new="2")
async def updated(**_: object) -> None:
    done.append("patches")


@kopf.on.delete("configmaps", labels={"ask": "yes"})
async def deleted(**_: object) -> None:
    done.append("finalizes")


async def wait_for(step: str) -> None:
    async with asyncio.timeout(60):
        while step not in done:
            await asyncio.sleep(0.1)
    print(step, flush=True)


async def main() -> None:
    await config.load_kube_config()
    ready, stop = asyncio.Event(), asyncio.Event()
    operator = asyncio.create_task(
        kopf.operator(namespaces=[SPACE], ready_flag=ready, stop_flag=stop, standalone=True)
    )
    await ready.wait()
    async with client.ApiClient() as connected:
        core = client.CoreV1Api(connected)
        await core.create_namespaced_config_map(SPACE, ASKED)
        await wait_for("watches")
        while True:
            asked = await core.read_namespaced_config_map("asked", SPACE)
            if (asked.metadata.annotations or {}).get("answer") == "yes":
                break
            await asyncio.sleep(0.1)
        await core.patch_namespaced_config_map("asked", SPACE, {"data": {"a": "2"}})
        await wait_for("patches")
        await core.delete_namespaced_config_map("asked", SPACE)
        await wait_for("finalizes")
    stop.set()
    await operator


asyncio.run(main())
