"""The secure channel over a blocking socket, for transfers of many bytes in one direction."""

import contextlib
import socket
import ssl

from gangline.elastic.protocol.channel.certificates import tls_end
from gangline.elastic.protocol.channel.job_secret import JobSecret
from gangline.elastic.protocol.channel.secure_channel import (
    PREAMBLE,
    OtherVersionError,
    SecureChannelError,
    check_preamble,
    explain_tls_error,
)


def connect_securely(connection: socket.socket, secret: JobSecret) -> ssl.SSLSocket:
    """Authenticate both ends of a new connection, as its client; take the connection over.

    Raises:
        SecureChannelError: the other end does not know the secret, or uses another version.
        OSError: the connection broke.
    """
    connection.sendall(PREAMBLE)
    check_preamble(_read_preamble(connection))
    return _wrap(connection, secret, client=True)


def accept_securely(connection: socket.socket, secret: JobSecret) -> ssl.SSLSocket:
    """Authenticate both ends of a new connection, as its server; errors as for the client."""
    try:
        check_preamble(_read_preamble(connection))
    except OtherVersionError as error:
        connection.sendall(error.reply)
        raise
    connection.sendall(PREAMBLE)
    return _wrap(connection, secret, client=False)


def _read_preamble(connection: socket.socket) -> bytes:
    received = b""
    while len(received) < len(PREAMBLE):
        piece = connection.recv(len(PREAMBLE) - len(received))
        if not piece:
            raise ConnectionResetError("the other end closed the connection before the handshake")
        received += piece
    return received


def _wrap(connection: socket.socket, secret: JobSecret, *, client: bool) -> ssl.SSLSocket:
    end = tls_end(secret, client=client)
    try:
        secured = end.context.wrap_socket(connection, server_side=not client)
    except ssl.SSLError as error:
        raise explain_tls_error(error) from error
    if secured.getpeercert(binary_form=True) != end.other_certificate:
        with contextlib.closing(secured):
            raise SecureChannelError("the other end shows another certificate than the job's")
    return secured
