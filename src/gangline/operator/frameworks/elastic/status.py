"""Status fields of ElasticJobs beside the common ones: DLRover's phase and the stored records.

DLRover's phase is that of the master pod. Here it is a function of the conditions, so that both
agree.
"""

import msgspec

from gangline.api.jobs.elastic import MASTER, ElasticJobRecord
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.conditions import is_condition_true
from gangline.operator.model import conditions
from gangline.operator.model.job import Manifest, RawJob
from gangline.operator.model.replicas import ReplicaGang

COMMON_FIELDS = tuple(each.name for each in msgspec.structs.fields(JobStatus))
_COMMON_WIRE = frozenset(each.encode_name for each in msgspec.structs.fields(JobStatus))
_DECODER = msgspec.json.Decoder(ElasticJobRecord)

_PHASES = (
    conditions.SUCCEEDED,
    conditions.FAILED,
    conditions.SUSPENDED,
    conditions.RUNNING,
)


def decode_elastic_status(stored: RawJob) -> ElasticJobRecord:
    """Decode a stored status.

    Raises:
        msgspec.DecodeError: the status cannot be decoded.
    """
    return _DECODER.decode(stored.status)


def elastic_status_fields(gang: ReplicaGang, status: JobStatus) -> Manifest:
    """Return the fields that are not common to all kinds."""
    written: Manifest = msgspec.to_builtins(status)
    own = {name: value for name, value in written.items() if name not in _COMMON_WIRE}
    return {**own, "phase": dlrover_phase(gang, status)}


def dlrover_phase(gang: ReplicaGang, status: JobStatus) -> str:
    current = (each for each in _PHASES if is_condition_true(status.conditions, each))
    phase = next(current, None)
    if phase is not None:
        return phase
    there = any(slots.present for name, slots in gang.roles.items() if name != MASTER)
    return "Pending" if there else "Created"
