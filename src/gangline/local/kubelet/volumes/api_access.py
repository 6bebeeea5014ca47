"""Access of pods to the API server: the token of the service account, the CA, and the namespace.

As in Kubernetes they are mounted into every container unless its pod opts out; clients read them at
a fixed path, and read the token again before it expires.
"""

from pathlib import Path

from gangline.api.core.pod import Pod
from gangline.local.kubelet.config.config_source import ConfigSource
from gangline.local.kubelet.volumes.projection import (
    ProjectedFile,
    token_file,
    volume_group,
    write_payload,
)
from gangline.local.kubelet.volumes.tokens import PodTokens

ACCESS_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_AUTHORITY = "kube-root-ca.crt"
_MODE = 0o644


async def write_api_access(
    pod: Pod, folder: Path, tokens: PodTokens, configs: ConfigSource
) -> Path | None:
    """Write the files for `ACCESS_PATH`; None if the pod's account does not exist or the pod opts
    out.

    A later call renews the token if it is due.

    Raises:
        ApiError: the API server does not answer.
        OSError: the disk is full.
    """
    namespace = pod.metadata.namespace
    declined = pod.spec.automount_service_account_token is False
    token = "" if declined else await tokens.get(pod)
    if not token:
        return None
    maps, _ = await configs.collect(namespace, ({_AUTHORITY}, set()))
    content = {"namespace": namespace.encode(), **maps.get(_AUTHORITY, {})}
    files = {name: ProjectedFile(value, _MODE) for name, value in content.items()}
    write_payload(folder, {**files, "token": token_file(pod, token)}, volume_group(pod))
    return folder
