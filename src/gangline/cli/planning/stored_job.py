"""A job of the cluster, for ``--like`` and ``--check``."""

from gangline.api.resources import NODES
from gangline.cli.params.target import ClusterTarget
from gangline.cli.planning.job_request import PRODUCT_LABEL, JobSource
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound
from gangline.sdk.client import JobClient
from gangline.sdk.goodput import read_goodput
from gangline.sdk.jobs import Job


async def load_job(target: ClusterTarget, name: str) -> JobSource:
    """Load a job with what it reports.

    Raises:
        NoSuchJob, AmbiguousJob: as ``JobClient.get``.
    """
    async with target.connect() as client:
        jobs, namespace = JobClient(client), target.namespace_of(client)
        job = await jobs.get(name, namespace)
        manifest = await jobs.manifest(job.name, namespace)
        goodput = await read_goodput(client, job)
        steps_per_s = goodput.steps_per_s if goodput else 0.0
        return JobSource(manifest, await _product(client, job), steps_per_s)


async def _product(client: ApiClient, job: Job) -> str:
    """Return the product name of the GPUs of the job's nodes; empty if it is unknown."""
    for replica in job.replicas:
        if replica.node:
            try:
                node = await client.get(NODES, replica.node)
            except (NotFound, Forbidden):
                return ""
            return node.metadata.labels.get(PRODUCT_LABEL, "")
    return ""
