"""The volumes of a pod, and the sources of their content."""

from typing import Annotated

import msgspec

from gangline.api.core.container import ObjectFieldSelector, ResourceFieldSelector
from gangline.api.core.reference import LocalObjectReference
from gangline.api.core.storage import PersistentVolumeClaimSpec
from gangline.api.meta.field_doc import FreeForm, Quantity, doc
from gangline.api.meta.objects import LabelSelector, ObjectMeta, Wire

_MODE = "Permission bits of the files, decimal or octal in YAML; 0644 when not given."
_OPTIONAL = "Start without it if it is missing."


class KeyToPath(Wire):
    """Maps a key to a file."""

    key: Annotated[str, doc("Key to read.", required=True)] = ""
    path: Annotated[str, doc("File name, relative to the volume.", required=True)] = ""
    mode: Annotated[int | None, doc("Permission bits of this file.")] = None


class EmptyDirVolumeSource(Wire):
    """An empty directory with the life time of the pod."""

    medium: Annotated[str, doc("Memory for a tmpfs; otherwise it is on the node's disk.")] = ""
    size_limit: Annotated[Quantity | None, doc("Maximum size; the pod is evicted beyond it.")] = (
        None
    )


class HostPathVolumeSource(Wire):
    """A file or folder of the node itself."""

    path: Annotated[str, doc("Path on the node.", required=True)] = ""
    type: Annotated[
        str,
        doc(
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

    name: Annotated[str, doc("Name of the ConfigMap.")] = ""
    items: Annotated[list[KeyToPath], doc("Only these keys; all when not given.")] = []
    default_mode: Annotated[int | None, doc(_MODE)] = None
    optional: Annotated[bool | None, doc(_OPTIONAL)] = None


class SecretVolumeSource(Wire):
    """A Secret as files, one for each key."""

    secret_name: Annotated[str, doc("Name of the Secret.")] = ""
    items: Annotated[list[KeyToPath], doc("Only these keys; all when not given.")] = []
    default_mode: Annotated[int | None, doc(_MODE)] = None
    optional: Annotated[bool | None, doc(_OPTIONAL)] = None


class DownwardAPIVolumeFile(Wire):
    """A file with a field of the pod."""

    path: Annotated[str, doc("File name, relative to the volume.", required=True)] = ""
    field_ref: Annotated[ObjectFieldSelector | None, doc("A field of the pod.")] = None
    resource_field_ref: Annotated[
        ResourceFieldSelector | None, doc("A request or limit of a container.")
    ] = None
    mode: Annotated[int | None, doc("Permission bits of this file.")] = None


class DownwardAPIVolumeSource(Wire):
    """Fields of the pod as files."""

    items: Annotated[list[DownwardAPIVolumeFile], doc("The files.")] = []
    default_mode: Annotated[int | None, doc(_MODE)] = None


class ConfigMapProjection(Wire):
    """A ConfigMap as part of a projected volume."""

    name: Annotated[str, doc("Name of the ConfigMap.")] = ""
    items: Annotated[list[KeyToPath], doc("Only these keys; all when not given.")] = []
    optional: Annotated[bool | None, doc(_OPTIONAL)] = None


class SecretProjection(Wire):
    """A Secret as part of a projected volume."""

    name: Annotated[str, doc("Name of the Secret.")] = ""
    items: Annotated[list[KeyToPath], doc("Only these keys; all when not given.")] = []
    optional: Annotated[bool | None, doc(_OPTIONAL)] = None


class DownwardAPIProjection(Wire):
    """Fields of the pod as part of a projected volume."""

    items: Annotated[list[DownwardAPIVolumeFile], doc("The files.")] = []


class ServiceAccountTokenProjection(Wire):
    """A token of the pod's service account, renewed before it expires."""

    path: Annotated[str, doc("File name, relative to the volume.", required=True)] = ""
    audience: Annotated[str, doc("Audience of the token; the API server if empty.")] = ""
    expiration_seconds: Annotated[
        int | None, doc("Life time of a token in seconds; 3600 when not given.")
    ] = None


class ClusterTrustBundleProjection(Wire):
    """Certificates of trusted authorities."""

    path: Annotated[str, doc("File name, relative to the volume.", required=True)] = ""
    name: Annotated[str, doc("One bundle by name.")] = ""
    signer_name: Annotated[str, doc("All bundles of this signer.")] = ""
    label_selector: Annotated[LabelSelector | None, doc("Which bundles of the signer.")] = None
    optional: Annotated[bool | None, doc(_OPTIONAL)] = None


class VolumeProjection(Wire):
    """One part of a projected volume. Exactly one is given."""

    config_map: Annotated[ConfigMapProjection | None, doc("A ConfigMap.")] = None
    secret: Annotated[SecretProjection | None, doc("A Secret.")] = None
    downward_api: Annotated[DownwardAPIProjection | None, doc("Fields of the pod.")] = (
        msgspec.field(name="downwardAPI", default=None)
    )
    service_account_token: Annotated[
        ServiceAccountTokenProjection | None, doc("A service account token.")
    ] = None
    cluster_trust_bundle: Annotated[
        ClusterTrustBundleProjection | None, doc("Trusted certificates.")
    ] = None
    pod_certificate: Annotated[FreeForm | None, doc("A certificate issued for the pod.")] = None


class ProjectedVolumeSource(Wire):
    """Several sources in one directory."""

    sources: Annotated[list[VolumeProjection], doc("The parts.")] = []
    default_mode: Annotated[int | None, doc(_MODE)] = None


class PersistentVolumeClaimVolumeSource(Wire):
    """A claim in the pod's namespace."""

    claim_name: Annotated[str, doc("Name of the claim.", required=True)] = ""
    read_only: Annotated[bool, doc("Mount it without permission to write.")] = False


class PersistentVolumeClaimTemplate(Wire):
    """The claim that is made for an ephemeral volume."""

    metadata: Annotated[ObjectMeta, doc("Labels and annotations of the claim.")] = ObjectMeta()
    spec: Annotated[PersistentVolumeClaimSpec, doc("What to claim.", required=True)] = (
        PersistentVolumeClaimSpec()
    )


class EphemeralVolumeSource(Wire):
    """A claim created with the pod and deleted with it."""

    volume_claim_template: Annotated[
        PersistentVolumeClaimTemplate | None, doc("The claim; its name is POD-VOLUME.")
    ] = None


class NFSVolumeSource(Wire):
    """A folder of an NFS server."""

    server: Annotated[str, doc("Host of the server.", required=True)] = ""
    path: Annotated[str, doc("Exported path.", required=True)] = ""
    read_only: Annotated[bool, doc("Mount it without permission to write.")] = False


class CSIVolumeSource(Wire):
    """A volume made by a storage driver for this pod."""

    driver: Annotated[str, doc("Name of the driver.", required=True)] = ""
    read_only: Annotated[bool | None, doc("Mount it without permission to write.")] = None
    fs_type: Annotated[str, doc("File system to make.")] = ""
    volume_attributes: Annotated[dict[str, str], doc("Settings for the driver.")] = {}
    node_publish_secret_ref: Annotated[
        LocalObjectReference | None, doc("Secret that the driver needs.")
    ] = None


class ImageVolumeSource(Wire):
    """The files of an image, read-only."""

    reference: Annotated[str, doc("The image.")] = ""
    pull_policy: Annotated[
        str, doc("When to pull it.", values=("Always", "IfNotPresent", "Never"))
    ] = ""


class Volume(Wire):
    """A named volume of a pod. Exactly one source is given."""

    name: Annotated[str, doc("Unique in the pod; a DNS label.", required=True)] = ""
    empty_dir: Annotated[EmptyDirVolumeSource | None, doc("An empty folder.")] = None
    host_path: Annotated[HostPathVolumeSource | None, doc("A path of the node.")] = None
    config_map: Annotated[ConfigMapVolumeSource | None, doc("A ConfigMap as files.")] = None
    secret: Annotated[SecretVolumeSource | None, doc("A Secret as files.")] = None
    downward_api: Annotated[DownwardAPIVolumeSource | None, doc("Fields of the pod as files.")] = (
        msgspec.field(name="downwardAPI", default=None)
    )
    projected: Annotated[ProjectedVolumeSource | None, doc("Several sources in one.")] = None
    persistent_volume_claim: Annotated[
        PersistentVolumeClaimVolumeSource | None, doc("A claimed volume.")
    ] = None
    ephemeral: Annotated[EphemeralVolumeSource | None, doc("A claim made with the pod.")] = None
    nfs: Annotated[NFSVolumeSource | None, doc("A folder of an NFS server.")] = None
    csi: Annotated[CSIVolumeSource | None, doc("A volume of a storage driver.")] = None
    image: Annotated[ImageVolumeSource | None, doc("The files of an image.")] = None
    iscsi: Annotated[FreeForm | None, doc("An iSCSI disk.")] = None
    fc: Annotated[FreeForm | None, doc("A Fibre Channel disk.")] = None
    cephfs: Annotated[FreeForm | None, doc("A CephFS folder (old form).")] = None
    rbd: Annotated[FreeForm | None, doc("A Ceph block device (old form).")] = None
    glusterfs: Annotated[FreeForm | None, doc("A GlusterFS folder (old form).")] = None
    flex_volume: Annotated[FreeForm | None, doc("A FlexVolume (old form).")] = None
    cinder: Annotated[FreeForm | None, doc("An OpenStack disk (old form).")] = None
    flocker: Annotated[FreeForm | None, doc("A Flocker volume (old form).")] = None
    git_repo: Annotated[FreeForm | None, doc("A cloned repository (old form).")] = None
    quobyte: Annotated[FreeForm | None, doc("A Quobyte volume (old form).")] = None
    aws_elastic_block_store: Annotated[FreeForm | None, doc("An AWS disk (old form).")] = None
    azure_disk: Annotated[FreeForm | None, doc("An Azure disk (old form).")] = None
    azure_file: Annotated[FreeForm | None, doc("An Azure file share (old form).")] = None
    gce_persistent_disk: Annotated[FreeForm | None, doc("A Google disk (old form).")] = None
    photon_persistent_disk: Annotated[FreeForm | None, doc("A Photon disk (old form).")] = None
    portworx_volume: Annotated[FreeForm | None, doc("A Portworx volume (old form).")] = None
    scale_io: Annotated[FreeForm | None, doc("A ScaleIO volume (old form).")] = msgspec.field(
        name="scaleIO", default=None
    )
    storageos: Annotated[FreeForm | None, doc("A StorageOS volume (old form).")] = None
    vsphere_volume: Annotated[FreeForm | None, doc("A vSphere disk (old form).")] = None
