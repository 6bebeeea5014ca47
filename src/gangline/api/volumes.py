"""The volumes of a pod, and the sources of their content."""

from typing import Annotated

import msgspec

from gangline.api.container import ObjectFieldSelector, ResourceFieldSelector
from gangline.api.describe import FreeForm, Quantity, about
from gangline.api.meta import LabelSelector, ObjectMeta, Wire
from gangline.api.reference import LocalObjectReference
from gangline.api.storage import PersistentVolumeClaimSpec

_MODE = "Permission bits of the files, decimal or octal in YAML; 0644 when not given."
_OPTIONAL = "Start without it if it is missing."


class KeyToPath(Wire):
    """Maps a key to a file."""

    key: Annotated[str, about("Key to read.", required=True)] = ""
    path: Annotated[str, about("File name, relative to the volume.", required=True)] = ""
    mode: Annotated[int | None, about("Permission bits of this file.")] = None


class EmptyDirVolumeSource(Wire):
    """An empty directory with the life time of the pod."""

    medium: Annotated[str, about("Memory for a tmpfs; otherwise it is on the node's disk.")] = ""
    size_limit: Annotated[Quantity | None, about("Maximum size; the pod is evicted beyond it.")] = (
        None
    )


class HostPathVolumeSource(Wire):
    """A file or folder of the node itself."""

    path: Annotated[str, about("Path on the node.", required=True)] = ""
    type: Annotated[
        str,
        about(
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

    name: Annotated[str, about("Name of the ConfigMap.")] = ""
    items: Annotated[list[KeyToPath], about("Only these keys; all when not given.")] = []
    default_mode: Annotated[int | None, about(_MODE)] = None
    optional: Annotated[bool | None, about(_OPTIONAL)] = None


class SecretVolumeSource(Wire):
    """A Secret as files, one for each key."""

    secret_name: Annotated[str, about("Name of the Secret.")] = ""
    items: Annotated[list[KeyToPath], about("Only these keys; all when not given.")] = []
    default_mode: Annotated[int | None, about(_MODE)] = None
    optional: Annotated[bool | None, about(_OPTIONAL)] = None


class DownwardAPIVolumeFile(Wire):
    """A file with a field of the pod."""

    path: Annotated[str, about("File name, relative to the volume.", required=True)] = ""
    field_ref: Annotated[ObjectFieldSelector | None, about("A field of the pod.")] = None
    resource_field_ref: Annotated[
        ResourceFieldSelector | None, about("A request or limit of a container.")
    ] = None
    mode: Annotated[int | None, about("Permission bits of this file.")] = None


class DownwardAPIVolumeSource(Wire):
    """Fields of the pod as files."""

    items: Annotated[list[DownwardAPIVolumeFile], about("The files.")] = []
    default_mode: Annotated[int | None, about(_MODE)] = None


class ConfigMapProjection(Wire):
    """A ConfigMap as part of a projected volume."""

    name: Annotated[str, about("Name of the ConfigMap.")] = ""
    items: Annotated[list[KeyToPath], about("Only these keys; all when not given.")] = []
    optional: Annotated[bool | None, about(_OPTIONAL)] = None


class SecretProjection(Wire):
    """A Secret as part of a projected volume."""

    name: Annotated[str, about("Name of the Secret.")] = ""
    items: Annotated[list[KeyToPath], about("Only these keys; all when not given.")] = []
    optional: Annotated[bool | None, about(_OPTIONAL)] = None


class DownwardAPIProjection(Wire):
    """Fields of the pod as part of a projected volume."""

    items: Annotated[list[DownwardAPIVolumeFile], about("The files.")] = []


class ServiceAccountTokenProjection(Wire):
    """A token of the pod's service account, renewed before it expires."""

    path: Annotated[str, about("File name, relative to the volume.", required=True)] = ""
    audience: Annotated[str, about("Audience of the token; the API server if empty.")] = ""
    expiration_seconds: Annotated[
        int | None, about("Life time of a token in seconds; 3600 when not given.")
    ] = None


class ClusterTrustBundleProjection(Wire):
    """Certificates of trusted authorities."""

    path: Annotated[str, about("File name, relative to the volume.", required=True)] = ""
    name: Annotated[str, about("One bundle by name.")] = ""
    signer_name: Annotated[str, about("All bundles of this signer.")] = ""
    label_selector: Annotated[LabelSelector | None, about("Which bundles of the signer.")] = None
    optional: Annotated[bool | None, about(_OPTIONAL)] = None


class VolumeProjection(Wire):
    """One part of a projected volume. Exactly one is given."""

    config_map: Annotated[ConfigMapProjection | None, about("A ConfigMap.")] = None
    secret: Annotated[SecretProjection | None, about("A Secret.")] = None
    downward_api: Annotated[DownwardAPIProjection | None, about("Fields of the pod.")] = (
        msgspec.field(name="downwardAPI", default=None)
    )
    service_account_token: Annotated[
        ServiceAccountTokenProjection | None, about("A service account token.")
    ] = None
    cluster_trust_bundle: Annotated[
        ClusterTrustBundleProjection | None, about("Trusted certificates.")
    ] = None
    pod_certificate: Annotated[FreeForm | None, about("A certificate issued for the pod.")] = None


class ProjectedVolumeSource(Wire):
    """Several sources in one directory."""

    sources: Annotated[list[VolumeProjection], about("The parts.")] = []
    default_mode: Annotated[int | None, about(_MODE)] = None


class PersistentVolumeClaimVolumeSource(Wire):
    """A claim in the pod's namespace."""

    claim_name: Annotated[str, about("Name of the claim.", required=True)] = ""
    read_only: Annotated[bool, about("Mount it without permission to write.")] = False


class PersistentVolumeClaimTemplate(Wire):
    """The claim that is made for an ephemeral volume."""

    metadata: Annotated[ObjectMeta, about("Labels and annotations of the claim.")] = ObjectMeta()
    spec: Annotated[PersistentVolumeClaimSpec, about("What to claim.", required=True)] = (
        PersistentVolumeClaimSpec()
    )


class EphemeralVolumeSource(Wire):
    """A claim created with the pod and deleted with it."""

    volume_claim_template: Annotated[
        PersistentVolumeClaimTemplate | None, about("The claim; its name is POD-VOLUME.")
    ] = None


class NFSVolumeSource(Wire):
    """A folder of an NFS server."""

    server: Annotated[str, about("Host of the server.", required=True)] = ""
    path: Annotated[str, about("Exported path.", required=True)] = ""
    read_only: Annotated[bool, about("Mount it without permission to write.")] = False


class CSIVolumeSource(Wire):
    """A volume made by a storage driver for this pod."""

    driver: Annotated[str, about("Name of the driver.", required=True)] = ""
    read_only: Annotated[bool | None, about("Mount it without permission to write.")] = None
    fs_type: Annotated[str, about("File system to make.")] = ""
    volume_attributes: Annotated[dict[str, str], about("Settings for the driver.")] = {}
    node_publish_secret_ref: Annotated[
        LocalObjectReference | None, about("Secret that the driver needs.")
    ] = None


class ImageVolumeSource(Wire):
    """The files of an image, read-only."""

    reference: Annotated[str, about("The image.")] = ""
    pull_policy: Annotated[
        str, about("When to pull it.", values=("Always", "IfNotPresent", "Never"))
    ] = ""


class Volume(Wire):
    """A named volume of a pod. Exactly one source is given."""

    name: Annotated[str, about("Unique in the pod; a DNS label.", required=True)] = ""
    empty_dir: Annotated[EmptyDirVolumeSource | None, about("An empty folder.")] = None
    host_path: Annotated[HostPathVolumeSource | None, about("A path of the node.")] = None
    config_map: Annotated[ConfigMapVolumeSource | None, about("A ConfigMap as files.")] = None
    secret: Annotated[SecretVolumeSource | None, about("A Secret as files.")] = None
    downward_api: Annotated[
        DownwardAPIVolumeSource | None, about("Fields of the pod as files.")
    ] = msgspec.field(name="downwardAPI", default=None)
    projected: Annotated[ProjectedVolumeSource | None, about("Several sources in one.")] = None
    persistent_volume_claim: Annotated[
        PersistentVolumeClaimVolumeSource | None, about("A claimed volume.")
    ] = None
    ephemeral: Annotated[EphemeralVolumeSource | None, about("A claim made with the pod.")] = None
    nfs: Annotated[NFSVolumeSource | None, about("A folder of an NFS server.")] = None
    csi: Annotated[CSIVolumeSource | None, about("A volume of a storage driver.")] = None
    image: Annotated[ImageVolumeSource | None, about("The files of an image.")] = None
    iscsi: Annotated[FreeForm | None, about("An iSCSI disk.")] = None
    fc: Annotated[FreeForm | None, about("A Fibre Channel disk.")] = None
    cephfs: Annotated[FreeForm | None, about("A CephFS folder (old form).")] = None
    rbd: Annotated[FreeForm | None, about("A Ceph block device (old form).")] = None
    glusterfs: Annotated[FreeForm | None, about("A GlusterFS folder (old form).")] = None
    flex_volume: Annotated[FreeForm | None, about("A FlexVolume (old form).")] = None
    cinder: Annotated[FreeForm | None, about("An OpenStack disk (old form).")] = None
    flocker: Annotated[FreeForm | None, about("A Flocker volume (old form).")] = None
    git_repo: Annotated[FreeForm | None, about("A cloned repository (old form).")] = None
    quobyte: Annotated[FreeForm | None, about("A Quobyte volume (old form).")] = None
    aws_elastic_block_store: Annotated[FreeForm | None, about("An AWS disk (old form).")] = None
    azure_disk: Annotated[FreeForm | None, about("An Azure disk (old form).")] = None
    azure_file: Annotated[FreeForm | None, about("An Azure file share (old form).")] = None
    gce_persistent_disk: Annotated[FreeForm | None, about("A Google disk (old form).")] = None
    photon_persistent_disk: Annotated[FreeForm | None, about("A Photon disk (old form).")] = None
    portworx_volume: Annotated[FreeForm | None, about("A Portworx volume (old form).")] = None
    scale_io: Annotated[FreeForm | None, about("A ScaleIO volume (old form).")] = msgspec.field(
        name="scaleIO", default=None
    )
    storageos: Annotated[FreeForm | None, about("A StorageOS volume (old form).")] = None
    vsphere_volume: Annotated[FreeForm | None, about("A vSphere disk (old form).")] = None
