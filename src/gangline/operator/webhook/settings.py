"""The administrator's settings of the admission webhook."""

import ipaddress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

from gangline.kube.probes import Address

DEFAULT_ADDRESS = Address("", 9443)
POD_SERVICE_PORT = 9443
"""Port of the Service that the operator creates (``has_own_service``)."""


class FailurePolicy(StrEnum):
    """What happens to the write of a job when no replica of the operator responds."""

    IGNORE = "Ignore"
    """The job is stored without validation; the operator validates every job before it runs."""
    FAIL = "Fail"
    """The write is refused."""


@dataclass(frozen=True, slots=True)
class CertificateValidity:
    """How long certificates are valid, and how they are rotated."""

    lifetime: timedelta = timedelta(days=90)
    renew_before: timedelta = timedelta(days=30)
    """Time before the expiry at which a certificate is renewed."""
    propagation: timedelta = timedelta(minutes=2)
    """Time from the registration of a CA until callers may be assumed to trust it."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Built once, from defaults < environment < flags."""

    url: str = ""
    """Address at which an API server outside of the cluster reaches this operator, such as
    ``https://10.0.0.5:9443``; port 0 stands for the served port. Empty: the service is used.
    """
    service: str = "gangline-operator"
    """Service of the operator; it forwards port 443 to the port of ``address``."""
    namespace: str = "gangline-system"
    """Namespace of the service and the Secret: the operator's own."""
    secret: str = "gangline-operator-webhook"
    """Secret through which replicas share their certificate."""
    configuration: str = "gangline-operator"
    """Name of the two webhook configurations; must differ for each operator in a cluster."""
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    queue_access: bool = False
    """Whether users need the verb ``use`` on the queues of their jobs, PodGroups and pods."""
    progress: bool = False
    """Whether pods may report the progress of their job, and get what they need for that."""
    has_own_service: bool = False
    """Whether the operator creates a Service for reports: pods do not reach its ``url``."""
    service_address: str = ""
    """Address of that Service, once it exists."""
    timeout_s: int = 5
    """Seconds that the API server waits for a response, 1 to 30. Each takes a few milliseconds."""
    address: Address = DEFAULT_ADDRESS
    """Address of the webhook; port 0 chooses a free one, which is possible only with a ``url``."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs are reviewed; empty: all. Matched by the label
    ``kubernetes.io/metadata.name``, which API servers set from 1.21 on.
    """
    remove_at_end: bool = False
    """Whether the configurations are deleted when this process ends, because no replica remains."""
    resync_s: float = 60.0
    """Seconds between checks of the Secret and the configurations for changes by others."""
    validity: CertificateValidity = field(default_factory=CertificateValidity)

    @classmethod
    def for_embedded_cluster(cls, *, queue_access: bool = False) -> Self:
        return cls(
            url="https://127.0.0.1:0",
            namespace="kube-system",
            address=Address("127.0.0.1", 0),
            remove_at_end=True,
            queue_access=queue_access,
            progress=True,
            has_own_service=True,
            # A right must not depend on the moment at which a job is written.
            failure_policy=FailurePolicy.FAIL if queue_access else FailurePolicy.IGNORE,
        )

    @property
    def names(self) -> frozenset[str]:
        """The host names that the certificate must be valid for."""
        if self.url:
            own = {self.service_address} if self.service_address else set()
            return frozenset({_normalize_host(urlsplit(self.url).hostname or ""), *own})
        name = f"{self.service}.{self.namespace}"
        return frozenset({name, f"{name}.svc", f"{name}.svc.cluster.local"})

    @property
    def progress_url(self) -> str:
        """The address to which pods report, without a path; empty if they cannot."""
        if not self.progress:
            return ""
        if self.has_own_service:
            address = self.service_address
            return f"https://{address}:{POD_SERVICE_PORT}" if address else ""
        return self.url.rstrip("/") or f"https://{self.service}.{self.namespace}.svc"


def _normalize_host(host: str) -> str:
    """Return an address in the form that certificates use."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host
