"""The volumes of a pod, and the sources of their content."""

from typing import Annotated

import msgspec

from gangline.api.core.container import ObjectFieldSelector, ResourceFieldSelector
from gangline.api.core.reference import LocalObjectReference
from gangline.api.core.storage import PersistentVolumeClaimSpec
from gangline.api.meta.field_doc import FreeForm, Quantity, field_doc
from gangline.api.meta.objects import LabelSelector, ObjectMeta, Wire

_MODE = "Permission bits of the files, decimal or octal in YAML; 0644 when not given."
_OPTIONAL = "Start without it if it is missing."


class KeyToPath(Wire):
    """Maps a key to a file."""

    key: Annotated[str, field_doc("Key to read.", required=True)] = ""
    path: Annotated[str, field_doc("File name, relative to the volume.", required=True)] = ""
    mode: Annotated[int | None, field_doc("Permission bits of this file.")] = None


class EmptyDirVolumeSource(Wire):
    """An empty directory with the life time of the pod."""

    medium: Annotated[str, field_doc("Memory for a tmpfs; otherwise it is on the node's disk.")] = (
        ""
    )
    size_limit: Annotated[
        Quantity | None, field_doc("Maximum size; the pod is evicted beyond it.")
    ] = None


class HostPathVolumeSource(Wire):
    """A file or folder of the node itself."""

    path: Annotated[str, field_doc("Path on the node.", required=True)] = ""
    type: Annotated[
        str,
        field_doc(
            "What must exist or is created; no check when empty.",
            values=(
                "",
                "DirectoryOrCreate",
                "Directory",
                "FileOrCreate",
                "File",
                "Socket",
                "CharDevice",
                "BlockDevice",
            ),
        ),
    ] = ""


class ConfigMapVolumeSource(Wire):
    """A ConfigMap as files, one for each key."""

    name: Annotated[str, field_doc("Name of the ConfigMap.")] = ""
    items: Annotated[list[KeyToPath], field_doc("Only these keys; all when not given.")] = []
    default_mode: Annotated[int | None, field_doc(_MODE)] = None
    optional: Annotated[bool | None, field_doc(_OPTIONAL)] = None


class SecretVolumeSource(Wire):
    """A Secret as files, one for each key."""

    secret_name: Annotated[str, field_doc("Name of the Secret.")] = ""
    items: Annotated[list[KeyToPath], field_doc("Only these keys; all when not given.")] = []
    default_mode: Annotated[int | None, field_doc(_MODE)] = None
    optional: Annotated[bool | None, field_doc(_OPTIONAL)] = None


class DownwardAPIVolumeFile(Wire):
    """A file with a field of the pod."""

    path: Annotated[str, field_doc("File name, relative to the volume.", required=True)] = ""
    field_ref: Annotated[ObjectFieldSelector | None, field_doc("A field of the pod.")] = None
    resource_field_ref: Annotated[
        ResourceFieldSelector | None, field_doc("A request or limit of a container.")
    ] = None
    mode: Annotated[int | None, field_doc("Permission bits of this file.")] = None


class DownwardAPIVolumeSource(Wire):
    """Fields of the pod as files."""

    items: Annotated[list[DownwardAPIVolumeFile], field_doc("The files.")] = []
    default_mode: Annotated[int | None, field_doc(_MODE)] = None


class ConfigMapProjection(Wire):
    """A ConfigMap as part of a projected volume."""

    name: Annotated[str, field_doc("Name of the ConfigMap.")] = ""
    items: Annotated[list[KeyToPath], field_doc("Only these keys; all when not given.")] = []
    optional: Annotated[bool | None, field_doc(_OPTIONAL)] = None


class SecretProjection(Wire):
    """A Secret as part of a projected volume."""

    name: Annotated[str, field_doc("Name of the Secret.")] = ""
    items: Annotated[list[KeyToPath], field_doc("Only these keys; all when not given.")] = []
    optional: Annotated[bool | None, field_doc(_OPTIONAL)] = None


class DownwardAPIProjection(Wire):
    """Fields of the pod as part of a projected volume."""

    items: Annotated[list[DownwardAPIVolumeFile], field_doc("The files.")] = []


class ServiceAccountTokenProjection(Wire):
    """A token of the pod's service account, renewed before it expires."""

    path: Annotated[str, field_doc("File name, relative to the volume.", required=True)] = ""
    audience: Annotated[str, field_doc("Audience of the token; the API server if empty.")] = ""
    expiration_seconds: Annotated[
        int | None, field_doc("Life time of a token in seconds; 3600 when not given.")
    ] = None


class ClusterTrustBundleProjection(Wire):
    """Certificates of trusted authorities."""

    path: Annotated[str, field_doc("File name, relative to the volume.", required=True)] = ""
    name: Annotated[str, field_doc("One bundle by name.")] = ""
    signer_name: Annotated[str, field_doc("All bundles of this signer.")] = ""
    label_selector: Annotated[LabelSelector | None, field_doc("Which bundles of the signer.")] = (
        None
    )
    optional: Annotated[bool | None, field_doc(_OPTIONAL)] = None


class VolumeProjection(Wire):
    """One part of a projected volume. Exactly one is given."""

    config_map: Annotated[ConfigMapProjection | None, field_doc("A ConfigMap.")] = None
    secret: Annotated[SecretProjection | None, field_doc("A Secret.")] = None
    downward_api: Annotated[DownwardAPIProjection | None, field_doc("Fields of the pod.")] = (
        msgspec.field(name="downwardAPI", default=None)
    )
    service_account_token: Annotated[
        ServiceAccountTokenProjection | None, field_doc("A service account token.")
    ] = None
    cluster_trust_bundle: Annotated[
        ClusterTrustBundleProjection | None, field_doc("Trusted certificates.")
    ] = None
    pod_certificate: Annotated[FreeForm | None, field_doc("A certificate issued for the pod.")] = (
        None
    )


class ProjectedVolumeSource(Wire):
    """Several sources in one directory."""

    sources: Annotated[list[VolumeProjection], field_doc("The parts.")] = []
    default_mode: Annotated[int | None, field_doc(_MODE)] = None


class PersistentVolumeClaimVolumeSource(Wire):
    """A claim in the pod's namespace."""

    claim_name: Annotated[str, field_doc("Name of the claim.", required=True)] = ""
    read_only: Annotated[bool, field_doc("Mount it without permission to write.")] = False


class PersistentVolumeClaimTemplate(Wire):
    """The claim that is made for an ephemeral volume."""

    metadata: Annotated[ObjectMeta, field_doc("Labels and annotations of the claim.")] = (
        ObjectMeta()
    )
    spec: Annotated[PersistentVolumeClaimSpec, field_doc("What to claim.", required=True)] = (
        PersistentVolumeClaimSpec()
    )


class EphemeralVolumeSource(Wire):
    """A claim created with the pod and deleted with it."""

    volume_claim_template: Annotated[
        PersistentVolumeClaimTemplate | None, field_doc("The claim; its name is POD-VOLUME.")
    ] = None


class NFSVolumeSource(Wire):
    """A folder of an NFS server."""

    server: Annotated[str, field_doc("Host of the server.", required=True)] = ""
    path: Annotated[str, field_doc("Exported path.", required=True)] = ""
    read_only: Annotated[bool, field_doc("Mount it without permission to write.")] = False


class CSIVolumeSource(Wire):
    """A volume made by a storage driver for this pod."""

    driver: Annotated[str, field_doc("Name of the driver.", required=True)] = ""
    read_only: Annotated[bool | None, field_doc("Mount it without permission to write.")] = None
    fs_type: Annotated[str, field_doc("File system to make.")] = ""
    volume_attributes: Annotated[dict[str, str], field_doc("Settings for the driver.")] = {}
    node_publish_secret_ref: Annotated[
        LocalObjectReference | None, field_doc("Secret that the driver needs.")
    ] = None


class ImageVolumeSource(Wire):
    """The files of an image, read-only."""

    reference: Annotated[str, field_doc("The image.")] = ""
    pull_policy: Annotated[
        str, field_doc("When to pull it.", values=("Always", "IfNotPresent", "Never"))
    ] = ""


class Volume(Wire):
    """A named volume of a pod. Exactly one source is given."""

    name: Annotated[str, field_doc("Unique in the pod; a DNS label.", required=True)] = ""
    empty_dir: Annotated[EmptyDirVolumeSource | None, field_doc("An empty folder.")] = None
    host_path: Annotated[HostPathVolumeSource | None, field_doc("A path of the node.")] = None
    config_map: Annotated[ConfigMapVolumeSource | None, field_doc("A ConfigMap as files.")] = None
    secret: Annotated[SecretVolumeSource | None, field_doc("A Secret as files.")] = None
    downward_api: Annotated[
        DownwardAPIVolumeSource | None, field_doc("Fields of the pod as files.")
    ] = msgspec.field(name="downwardAPI", default=None)
    projected: Annotated[ProjectedVolumeSource | None, field_doc("Several sources in one.")] = None
    persistent_volume_claim: Annotated[
        PersistentVolumeClaimVolumeSource | None, field_doc("A claimed volume.")
    ] = None
    ephemeral: Annotated[EphemeralVolumeSource | None, field_doc("A claim made with the pod.")] = (
        None
    )
    nfs: Annotated[NFSVolumeSource | None, field_doc("A folder of an NFS server.")] = None
    csi: Annotated[CSIVolumeSource | None, field_doc("A volume of a storage driver.")] = None
    image: Annotated[ImageVolumeSource | None, field_doc("The files of an image.")] = None
    iscsi: Annotated[FreeForm | None, field_doc("An iSCSI disk.")] = None
    fc: Annotated[FreeForm | None, field_doc("A Fibre Channel disk.")] = None
    cephfs: Annotated[FreeForm | None, field_doc("A CephFS folder (old form).")] = None
    rbd: Annotated[FreeForm | None, field_doc("A Ceph block device (old form).")] = None
    glusterfs: Annotated[FreeForm | None, field_doc("A GlusterFS folder (old form).")] = None
    flex_volume: Annotated[FreeForm | None, field_doc("A FlexVolume (old form).")] = None
    cinder: Annotated[FreeForm | None, field_doc("An OpenStack disk (old form).")] = None
    flocker: Annotated[FreeForm | None, field_doc("A Flocker volume (old form).")] = None
    git_repo: Annotated[FreeForm | None, field_doc("A cloned repository (old form).")] = None
    quobyte: Annotated[FreeForm | None, field_doc("A Quobyte volume (old form).")] = None
    aws_elastic_block_store: Annotated[FreeForm | None, field_doc("An AWS disk (old form).")] = None
    azure_disk: Annotated[FreeForm | None, field_doc("An Azure disk (old form).")] = None
    azure_file: Annotated[FreeForm | None, field_doc("An Azure file share (old form).")] = None
    gce_persistent_disk: Annotated[FreeForm | None, field_doc("A Google disk (old form).")] = None
    photon_persistent_disk: Annotated[FreeForm | None, field_doc("A Photon disk (old form).")] = (
        None
    )
    portworx_volume: Annotated[FreeForm | None, field_doc("A Portworx volume (old form).")] = None
    scale_io: Annotated[FreeForm | None, field_doc("A ScaleIO volume (old form).")] = msgspec.field(
        name="scaleIO", default=None
    )
    storageos: Annotated[FreeForm | None, field_doc("A StorageOS volume (old form).")] = None
    vsphere_volume: Annotated[FreeForm | None, field_doc("A vSphere disk (old form).")] = None
