"""Persistent storage: volumes, claims, storage classes."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.core.affinity import NodeSelector
from gangline.api.core.reference import (
    ObjectReference,
    SecretReference,
    TypedLocalObjectReference,
    TypedObjectReference,
)
from gangline.api.meta.field_doc import FreeForm, ResourceList, doc
from gangline.api.meta.objects import Condition, LabelSelector, Object, Wire

_ACCESS = "How it may be mounted: ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod."
_VOLUME_MODE = "Filesystem (when not given) or Block."
_VOLUME_MODES = ("Filesystem", "Block")


class VolumeResourceRequirements(Wire):
    """The requested amount of storage."""

    requests: Annotated[ResourceList, doc("At least this much storage.")] = {}
    limits: Annotated[ResourceList, doc("At most this much storage.")] = {}


class PersistentVolumeClaimSpec(Wire):
    """The requested storage."""

    access_modes: Annotated[list[str], doc(_ACCESS)] = []
    resources: Annotated[VolumeResourceRequirements, doc("How much storage.")] = (
        VolumeResourceRequirements()
    )
    storage_class_name: Annotated[
        str | None, doc("Class that makes the volume; the default class when not given.")
    ] = None
    selector: Annotated[LabelSelector | None, doc("Only volumes with these labels.")] = None
    volume_name: Annotated[str, doc("The volume bound, or to bind, to this claim.")] = ""
    volume_mode: Annotated[str, doc(_VOLUME_MODE, values=_VOLUME_MODES)] = ""
    data_source: Annotated[
        TypedLocalObjectReference | None, doc("Snapshot or claim to start from.")
    ] = None
    data_source_ref: Annotated[
        TypedObjectReference | None, doc("Object of any kind to start from.")
    ] = None
    volume_attributes_class_name: Annotated[str, doc("Class of changeable settings.")] = ""


class PersistentVolumeClaimStatus(Wire):
    """The observed state of a claim."""

    phase: Annotated[str, doc("Pending, Bound or Lost.")] = ""
    access_modes: Annotated[list[str], doc("How the bound volume may be mounted.")] = []
    capacity: Annotated[ResourceList, doc("Size of the bound volume.")] = {}
    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []
    allocated_resources: Annotated[ResourceList, doc("Size that is being provisioned.")] = {}
    allocated_resource_statuses: Annotated[dict[str, str], doc("Progress of a resize.")] = {}
    current_volume_attributes_class_name: Annotated[str, doc("Class in effect.")] = ""
    modify_volume_status: Annotated[FreeForm | None, doc("Progress of a change of class.")] = None


class PersistentVolumeClaim(Object):
    """A request for storage."""

    spec: Annotated[PersistentVolumeClaimSpec, doc("Desired state.")] = PersistentVolumeClaimSpec()
    status: Annotated[PersistentVolumeClaimStatus, doc("Observed state.")] = (
        PersistentVolumeClaimStatus()
    )


class HostPathVolume(Wire):
    """A path of the node."""

    path: Annotated[str, doc("Path on the node.", required=True)] = ""
    type: Annotated[str, doc("What must exist or is created.")] = ""


class LocalVolumeSource(Wire):
    """A disk or folder of one node."""

    path: Annotated[str, doc("Path on the node.", required=True)] = ""
    fs_type: Annotated[str, doc("File system of a disk.")] = ""


class NFSVolume(Wire):
    """A folder of an NFS server."""

    server: Annotated[str, doc("Host of the server.", required=True)] = ""
    path: Annotated[str, doc("Exported path.", required=True)] = ""
    read_only: Annotated[bool, doc("Mount it without permission to write.")] = False


class CSIPersistentVolumeSource(Wire):
    """A volume of a storage driver."""

    driver: Annotated[str, doc("Name of the driver.", required=True)] = ""
    volume_handle: Annotated[str, doc("The driver's name of the volume.", required=True)] = ""
    read_only: Annotated[bool, doc("Mount it without permission to write.")] = False
    fs_type: Annotated[str, doc("File system of the volume.")] = ""
    volume_attributes: Annotated[dict[str, str], doc("Settings for the driver.")] = {}
    controller_publish_secret_ref: Annotated[SecretReference | None, doc("To attach.")] = None
    node_stage_secret_ref: Annotated[SecretReference | None, doc("To stage.")] = None
    node_publish_secret_ref: Annotated[SecretReference | None, doc("To mount.")] = None
    controller_expand_secret_ref: Annotated[SecretReference | None, doc("To grow.")] = None
    node_expand_secret_ref: Annotated[SecretReference | None, doc("To grow on a node.")] = None


class VolumeNodeAffinity(Wire):
    """The nodes that can reach a volume."""

    required: Annotated[NodeSelector | None, doc("The nodes.")] = None


class PersistentVolumeSpec(Wire):
    """The storage behind a volume, and its limits of use."""

    capacity: Annotated[ResourceList, doc("Its size.")] = {}
    access_modes: Annotated[list[str], doc(_ACCESS)] = []
    persistent_volume_reclaim_policy: Annotated[
        str,
        doc("What happens when its claim is deleted.", values=("Retain", "Delete", "Recycle")),
    ] = ""
    storage_class_name: Annotated[str, doc("Class that it belongs to.")] = ""
    volume_mode: Annotated[str, doc(_VOLUME_MODE, values=_VOLUME_MODES)] = ""
    mount_options: Annotated[list[str], doc("Options for mounting it.")] = []
    claim_ref: Annotated[ObjectReference | None, doc("The claim it is bound to.")] = None
    node_affinity: Annotated[VolumeNodeAffinity | None, doc("Nodes that reach it.")] = None
    volume_attributes_class_name: Annotated[str, doc("Class of changeable settings.")] = ""
    host_path: Annotated[HostPathVolume | None, doc("A path of the node.")] = None
    local: Annotated[LocalVolumeSource | None, doc("A disk of one node.")] = None
    nfs: Annotated[NFSVolume | None, doc("A folder of an NFS server.")] = None
    csi: Annotated[CSIPersistentVolumeSource | None, doc("A storage driver's volume.")] = None
    iscsi: Annotated[FreeForm | None, doc("An iSCSI disk.")] = None
    fc: Annotated[FreeForm | None, doc("A Fibre Channel disk.")] = None
    cephfs: Annotated[FreeForm | None, doc("A CephFS folder (old form).")] = None
    rbd: Annotated[FreeForm | None, doc("A Ceph block device (old form).")] = None
    aws_elastic_block_store: Annotated[FreeForm | None, doc("An AWS disk (old form).")] = None
    azure_disk: Annotated[FreeForm | None, doc("An Azure disk (old form).")] = None
    azure_file: Annotated[FreeForm | None, doc("An Azure file share (old form).")] = None
    cinder: Annotated[FreeForm | None, doc("An OpenStack disk (old form).")] = None
    flex_volume: Annotated[FreeForm | None, doc("A FlexVolume (old form).")] = None
    flocker: Annotated[FreeForm | None, doc("A Flocker volume (old form).")] = None
    gce_persistent_disk: Annotated[FreeForm | None, doc("A Google disk (old form).")] = None
    glusterfs: Annotated[FreeForm | None, doc("A GlusterFS folder (old form).")] = None
    photon_persistent_disk: Annotated[FreeForm | None, doc("A Photon disk (old form).")] = None
    portworx_volume: Annotated[FreeForm | None, doc("A Portworx volume (old form).")] = None
    quobyte: Annotated[FreeForm | None, doc("A Quobyte volume (old form).")] = None
    storageos: Annotated[FreeForm | None, doc("A StorageOS volume (old form).")] = None
    vsphere_volume: Annotated[FreeForm | None, doc("A vSphere disk (old form).")] = None
    scale_io: Annotated[FreeForm | None, doc("A ScaleIO volume (old form).")] = msgspec.field(
        name="scaleIO", default=None
    )


class PersistentVolumeStatus(Wire):
    """The observed state of a volume."""

    phase: Annotated[str, doc("Pending, Available, Bound, Released or Failed.")] = ""
    message: Annotated[str, doc("Why, for users.")] = ""
    reason: Annotated[str, doc("Why, for programs.")] = ""
    last_phase_transition_time: Annotated[
        datetime | None, doc("Time of the last change of the phase.")
    ] = None


class PersistentVolume(Object):
    """A piece of storage in the cluster."""

    spec: Annotated[PersistentVolumeSpec, doc("Desired state.")] = PersistentVolumeSpec()
    status: Annotated[PersistentVolumeStatus, doc("Observed state.")] = PersistentVolumeStatus()


class StorageClass(Object):
    """How volumes of a class are provisioned."""

    provisioner: Annotated[str, doc("Provisioner of the volumes.", required=True)] = ""
    parameters: Annotated[dict[str, str], doc("Settings for the provisioner.")] = {}
    reclaim_policy: Annotated[
        str,
        doc("What happens when a claim is deleted.", values=("Retain", "Delete", "Recycle")),
    ] = ""
    mount_options: Annotated[list[str], doc("Options for mounting its volumes.")] = []
    allow_volume_expansion: Annotated[bool | None, doc("Whether claims may grow.")] = None
    volume_binding_mode: Annotated[
        str,
        doc(
            "Bind immediately, or when a pod needs it.",
            values=("Immediate", "WaitForFirstConsumer"),
        ),
    ] = ""
    allowed_topologies: Annotated[list[FreeForm], doc("Where volumes may be provisioned.")] = []
