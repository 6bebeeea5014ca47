"""The TLS of a server that stands for the kubelet of a node."""

from gangline.local.apiserver.auth.node_authorizer import prepare_node_certificates
from gangline.local.apiserver.server import ApiServer
from gangline.local.kubelet.server import NodeTls


def node_tls(server: ApiServer, node: str = "n") -> NodeTls:
    """Certificates as the cluster makes them for the node, at 127.0.0.1."""
    folder = server.settings.data / node
    pair = prepare_node_certificates(server.authority, folder, node, ["127.0.0.1"]).server
    files = (pair.certificate, pair.key)
    return NodeTls(server.ca_path, lambda name: files if name == node else None)
