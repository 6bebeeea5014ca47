"""A probe that cannot even be sent has failed."""

from typing import cast

import pytest

from gangline.api.core.container import Container
from gangline.api.core.probe import HTTPGetAction, HTTPHeader, Probe, TCPSocketAction
from gangline.local.kubelet.probes import ProbeTarget, run_probe
from gangline.local.kubelet.runtime.interface import RunningContainer

LONG_LABEL = "a" * 70 + ".example"
TARGET = ProbeTarget(Container(name="c"), cast("RunningContainer", None), "127.0.0.1")


@pytest.mark.parametrize(
    "probe",
    [
        Probe(http_get=HTTPGetAction(port=1, host=LONG_LABEL)),
        Probe(http_get=HTTPGetAction(port=1, host="[::1")),
        Probe(http_get=HTTPGetAction(port=1, http_headers=[HTTPHeader("a\nb", "c")])),
        Probe(tcp_socket=TCPSocketAction(port=1, host=LONG_LABEL)),
    ],
    ids=["long label", "half an address", "header of two lines", "long label of TCP"],
)
async def test_hosts_and_headers_that_cannot_be_sent_fail_the_probe(probe: Probe) -> None:
    assert await run_probe(probe, TARGET, 5)
