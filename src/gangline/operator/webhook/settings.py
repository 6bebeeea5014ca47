"""What an administrator can choose about the admission webhook."""

import ipaddress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

from gangline.kube.probes import Address

USUAL_ADDRESS = Address("", 9443)


class FailurePolicy(StrEnum):
    """What a job's write comes to when no copy of the operator answers."""

    IGNORE = "Ignore"
    """It is stored unchecked; the operator checks it when it runs it, as it does all jobs."""
    FAIL = "Fail"
    """It is refused."""


@dataclass(frozen=True, slots=True)
class Validity:
    """How long certificates live, and how they are replaced."""

    lifetime: timedelta = timedelta(days=90)
    renewed_before: timedelta = timedelta(days=30)
    """So long before its end a certificate is replaced."""
    settle: timedelta = timedelta(minutes=2)
    """From telling callers of an authority until they can be taken to trust it."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Built once, from defaults < environment < flags."""

    url: str = ""
    """Address at which the API server reaches this operator from outside of the cluster, such as
    ``https://10.0.0.5:9443``; port 0 stands for the port that is served. Empty: by the service."""
    service: str = "gangline-operator"
    """Service in front of the copies of the operator; it sends port 443 to that of ``address``."""
    namespace: str = "gangline-system"
    """Where the service and the secret are: the operator's own namespace."""
    secret: str = "gangline-operator-webhook"
    """Secret that the copies share their certificate by."""
    configuration: str = "gangline-operator"
    """Name of the two webhook configurations; another for each further operator in a cluster."""
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    timeout_s: int = 5
    """How long the API server waits for an answer, 1 to 30. Each takes a few milliseconds."""
    address: Address = USUAL_ADDRESS
    """Where the webhook is served; port 0 takes a free one, which only goes with a ``url``."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs are checked; none named: all. Found by the label
    ``kubernetes.io/metadata.name``, which API servers set from 1.21 on."""
    removed_at_end: bool = False
    """Whether the configurations go when this process ends: where no other copy answers."""
    look_every_s: float = 60.0
    """How often the secret and the configurations are looked at, for what others changed."""
    validity: Validity = field(default_factory=Validity)

    @classmethod
    def beside_the_server(cls) -> Self:
        """Where the operator runs in the process of the API server, and nobody else answers."""
        return cls(
            url="https://127.0.0.1:0",
            namespace="kube-system",
            address=Address("127.0.0.1", 0),
            removed_at_end=True,
        )

    @property
    def names(self) -> frozenset[str]:
        """What the certificate has to be good for."""
        if self.url:
            return frozenset({_plain(urlsplit(self.url).hostname or "")})
        name = f"{self.service}.{self.namespace}"
        return frozenset({name, f"{name}.svc", f"{name}.svc.cluster.local"})


def _plain(host: str) -> str:
    """Write an address as certificates do."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host
