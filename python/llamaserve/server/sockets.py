"""Listening sockets: TCP (IPv4, IPv6) and UNIX."""

from __future__ import annotations

import contextlib
import errno
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llamaserve.options import ServerSettings


class ListenError(Exception):
    """An address can't be listened on; the message says why."""


def bind(settings: ServerSettings) -> list[socket.socket]:
    """Sockets for all hosts. With port 0 the first one gets a free port, and the others the same."""
    port = settings.port
    several = sum(not is_unix(host) for host in settings.hosts) > 1
    sockets: list[socket.socket] = []
    try:
        for host in settings.hosts:
            if is_unix(host):
                sockets.append(_bind_unix(host))
            else:
                sock = _bind_tcp(host, port, reuse_port=settings.reuse_port, v6only=several)
                sockets.append(sock)
                port = sock.getsockname()[1]
    except ListenError:
        close(sockets)
        raise
    return sockets


def is_unix(host: str) -> bool:
    return host.endswith(".sock")


def close(sockets: list[socket.socket]) -> None:
    """Closes the sockets."""
    for sock in sockets:
        sock.close()


def remove_files(hosts: list[str]) -> None:
    """Removes the files of UNIX sockets that were bound."""
    for host in filter(is_unix, hosts):
        with contextlib.suppress(OSError):
            Path(host).unlink()


def address(sock: socket.socket, *, tls: bool) -> str:
    """The address in the form people use."""
    name = sock.getsockname()
    if not isinstance(name, tuple):
        return f"unix://{name}"
    host = f"[{name[0]}]" if sock.family == socket.AF_INET6 else name[0]
    return f"{'https' if tls else 'http'}://{host}:{name[1]}"


def _bind_tcp(host: str, port: int, *, reuse_port: bool, v6only: bool) -> socket.socket:
    bare = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as e:
        raise ListenError(f"can't listen on {host}: {e.strerror or e}") from None
    family, _, _, _, where = found[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if hasattr(socket, "SO_REUSEADDR"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # With several addresses, [::] must not take the IPv4 ones as well.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(v6only))
        sock.bind(where)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        if e.errno == errno.EADDRINUSE:
            raise ListenError(
                f"port {port} on {host} is in use by another program; choose another with --port, or 0 for a free one"
            ) from None
        raise ListenError(f"can't listen on {host}, port {port}: {e.strerror or e}") from None
    return sock


def _bind_unix(host: str) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise ListenError(f"can't listen on {host}: this system has no UNIX sockets")
    path = Path(host)
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        raise ListenError(f"can't listen on {host}: {e.strerror or e}") from None
    return sock


def _remove_stale(path: Path) -> None:
    """Removes the socket that a server left which is no longer there."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError:
            pass
        else:
            raise ListenError(f"can't listen on {path}: another program does")
