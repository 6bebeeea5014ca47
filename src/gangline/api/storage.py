"""Persistent storage: volumes, claims, storage classes."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.affinity import NodeSelector
from gangline.api.describe import FreeForm, ResourceList, about
from gangline.api.meta import Condition, LabelSelector, Object, Wire
from gangline.api.reference import (
    ObjectReference,
    SecretReference,
    TypedLocalObjectReference,
    TypedObjectReference,
)

_ACCESS = "How it may be mounted: ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod."
_VOLUME_MODE = "Filesystem (when not given) or Block."
_VOLUME_MODES = ("Filesystem", "Block")


class VolumeResourceRequirements(Wire):
    """The requested amount of storage."""

    requests: Annotated[ResourceList, about("At least this much storage.")] = {}
    limits: Annotated[ResourceList, about("At most this much storage.")] = {}


class PersistentVolumeClaimSpec(Wire):
    """The requested storage."""

    access_modes: Annotated[list[str], about(_ACCESS)] = []
    resources: Annotated[VolumeResourceRequirements, about("How much storage.")] = (
        VolumeResourceRequirements()
    )
    storage_class_name: Annotated[
        str | None, about("Class that makes the volume; the default class when not given.")
    ] = None
    selector: Annotated[LabelSelector | None, about("Only volumes with these labels.")] = None
    volume_name: Annotated[str, about("The volume bound, or to bind, to this claim.")] = ""
    volume_mode: Annotated[str, about(_VOLUME_MODE, values=_VOLUME_MODES)] = ""
    data_source: Annotated[
        TypedLocalObjectReference | None, about("Snapshot or claim to start from.")
    ] = None
    data_source_ref: Annotated[
        TypedObjectReference | None, about("Object of any kind to start from.")
    ] = None
    volume_attributes_class_name: Annotated[str, about("Class of changeable settings.")] = ""


class PersistentVolumeClaimStatus(Wire):
    """The observed state of a claim."""

    phase: Annotated[str, about("Pending, Bound or Lost.")] = ""
    access_modes: Annotated[list[str], about("How the bound volume may be mounted.")] = []
    capacity: Annotated[ResourceList, about("Size of the bound volume.")] = {}
    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []
    allocated_resources: Annotated[ResourceList, about("Size that is being provisioned.")] = {}
    allocated_resource_statuses: Annotated[dict[str, str], about("Progress of a resize.")] = {}
    current_volume_attributes_class_name: Annotated[str, about("Class in effect.")] = ""
    modify_volume_status: Annotated[FreeForm | None, about("Progress of a change of class.")] = None


class PersistentVolumeClaim(Object):
    """A request for storage."""

    spec: Annotated[PersistentVolumeClaimSpec, about("Desired state.")] = (
        PersistentVolumeClaimSpec()
    )
    status: Annotated[PersistentVolumeClaimStatus, about("Observed state.")] = (
        PersistentVolumeClaimStatus()
    )


class HostPathVolume(Wire):
    """A path of the node."""

    path: Annotated[str, about("Path on the node.", required=True)] = ""
    type: Annotated[str, about("What must exist or is created.")] = ""


class LocalVolumeSource(Wire):
    """A disk or folder of one node."""

    path: Annotated[str, about("Path on the node.", required=True)] = ""
    fs_type: Annotated[str, about("File system of a disk.")] = ""


class NFSVolume(Wire):
    """A folder of an NFS server."""

    server: Annotated[str, about("Host of the server.", required=True)] = ""
    path: Annotated[str, about("Exported path.", required=True)] = ""
    read_only: Annotated[bool, about("Mount it without permission to write.")] = False


class CSIPersistentVolumeSource(Wire):
    """A volume of a storage driver."""

    driver: Annotated[str, about("Name of the driver.", required=True)] = ""
    volume_handle: Annotated[str, about("The driver's name of the volume.", required=True)] = ""
    read_only: Annotated[bool, about("Mount it without permission to write.")] = False
    fs_type: Annotated[str, about("File system of the volume.")] = ""
    volume_attributes: Annotated[dict[str, str], about("Settings for the driver.")] = {}
    controller_publish_secret_ref: Annotated[SecretReference | None, about("To attach.")] = None
    node_stage_secret_ref: Annotated[SecretReference | None, about("To stage.")] = None
    node_publish_secret_ref: Annotated[SecretReference | None, about("To mount.")] = None
    controller_expand_secret_ref: Annotated[SecretReference | None, about("To grow.")] = None
    node_expand_secret_ref: Annotated[SecretReference | None, about("To grow on a node.")] = None


class VolumeNodeAffinity(Wire):
    """The nodes that can reach a volume."""

    required: Annotated[NodeSelector | None, about("The nodes.")] = None


class PersistentVolumeSpec(Wire):
    """The storage behind a volume, and its limits of use."""

    capacity: Annotated[ResourceList, about("Its size.")] = {}
    access_modes: Annotated[list[str], about(_ACCESS)] = []
    persistent_volume_reclaim_policy: Annotated[
        str,
        about("What happens when its claim is deleted.", values=("Retain", "Delete", "Recycle")),
    ] = ""
    storage_class_name: Annotated[str, about("Class that it belongs to.")] = ""
    volume_mode: Annotated[str, about(_VOLUME_MODE, values=_VOLUME_MODES)] = ""
    mount_options: Annotated[list[str], about("Options for mounting it.")] = []
    claim_ref: Annotated[ObjectReference | None, about("The claim it is bound to.")] = None
    node_affinity: Annotated[VolumeNodeAffinity | None, about("Nodes that reach it.")] = None
    volume_attributes_class_name: Annotated[str, about("Class of changeable settings.")] = ""
    host_path: Annotated[HostPathVolume | None, about("A path of the node.")] = None
    local: Annotated[LocalVolumeSource | None, about("A disk of one node.")] = None
    nfs: Annotated[NFSVolume | None, about("A folder of an NFS server.")] = None
    csi: Annotated[CSIPersistentVolumeSource | None, about("A storage driver's volume.")] = None
    iscsi: Annotated[FreeForm | None, about("An iSCSI disk.")] = None
    fc: Annotated[FreeForm | None, about("A Fibre Channel disk.")] = None
    cephfs: Annotated[FreeForm | None, about("A CephFS folder (old form).")] = None
    rbd: Annotated[FreeForm | None, about("A Ceph block device (old form).")] = None
    aws_elastic_block_store: Annotated[FreeForm | None, about("An AWS disk (old form).")] = None
    azure_disk: Annotated[FreeForm | None, about("An Azure disk (old form).")] = None
    azure_file: Annotated[FreeForm | None, about("An Azure file share (old form).")] = None
    cinder: Annotated[FreeForm | None, about("An OpenStack disk (old form).")] = None
    flex_volume: Annotated[FreeForm | None, about("A FlexVolume (old form).")] = None
    flocker: Annotated[FreeForm | None, about("A Flocker volume (old form).")] = None
    gce_persistent_disk: Annotated[FreeForm | None, about("A Google disk (old form).")] = None
    glusterfs: Annotated[FreeForm | None, about("A GlusterFS folder (old form).")] = None
    photon_persistent_disk: Annotated[FreeForm | None, about("A Photon disk (old form).")] = None
    portworx_volume: Annotated[FreeForm | None, about("A Portworx volume (old form).")] = None
    quobyte: Annotated[FreeForm | None, about("A Quobyte volume (old form).")] = None
    storageos: Annotated[FreeForm | None, about("A StorageOS volume (old form).")] = None
    vsphere_volume: Annotated[FreeForm | None, about("A vSphere disk (old form).")] = None
    scale_io: Annotated[FreeForm | None, about("A ScaleIO volume (old form).")] = msgspec.field(
        name="scaleIO", default=None
    )


class PersistentVolumeStatus(Wire):
    """The observed state of a volume."""

    phase: Annotated[str, about("Pending, Available, Bound, Released or Failed.")] = ""
    message: Annotated[str, about("Why, for users.")] = ""
    reason: Annotated[str, about("Why, for programs.")] = ""
    last_phase_transition_time: Annotated[
        datetime | None, about("Time of the last change of the phase.")
    ] = None


class PersistentVolume(Object):
    """A piece of storage in the cluster."""

    spec: Annotated[PersistentVolumeSpec, about("Desired state.")] = PersistentVolumeSpec()
    status: Annotated[PersistentVolumeStatus, about("Observed state.")] = PersistentVolumeStatus()


class StorageClass(Object):
    """How volumes of a class are provisioned."""

    provisioner: Annotated[str, about("Provisioner of the volumes.", required=True)] = ""
    parameters: Annotated[dict[str, str], about("Settings for the provisioner.")] = {}
    reclaim_policy: Annotated[
        str, about("What happens when a claim is deleted.", values=("Retain", "Delete", "Recycle"))
    ] = ""
    mount_options: Annotated[list[str], about("Options for mounting its volumes.")] = []
    allow_volume_expansion: Annotated[bool | None, about("Whether claims may grow.")] = None
    volume_binding_mode: Annotated[
        str,
        about(
            "Bind immediately, or when a pod needs it.",
            values=("Immediate", "WaitForFirstConsumer"),
        ),
    ] = ""
    allowed_topologies: Annotated[list[FreeForm], about("Where volumes may be provisioned.")] = []
