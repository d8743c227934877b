"""Access control: the bearer token, and the addresses that need none."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from pathlib import Path

from ecorl.errors import ConfigError

TOKEN_VARIABLE = "ECORL_SERVE_TOKEN"
_BACKLOG = 1024


def load_token(path: Path | None, environment: Mapping[str, str]) -> str | None:
    """Load the token that clients must send: from the file, else from the environment, else None.

    Args:
        path: file whose only content is the token; None to look at the environment.
        environment: environment variables of the process.

    Returns:
        The token, or None where clients need none.

    Raises:
        ConfigError: when the file cannot be read, or the token could not stand in a header.
    """
    if path is not None:
        try:
            return _checked(path.expanduser().read_bytes(), "--token-file", str(path))
        except OSError as error:
            allowed = f"a readable file with the token ({error.strerror})"
            raise ConfigError("--token-file", str(path), allowed) from error
    given = environment.get(TOKEN_VARIABLE)
    if given is None:
        return None
    return _checked(given.encode("utf-8", "surrogateescape"), TOKEN_VARIABLE, "...")


def _checked(raw: bytes, key: str, shown: str) -> str:
    token = raw.strip()
    if not token or any(not 0x21 <= byte <= 0x7E for byte in token):
        raise ConfigError(key, shown, "one token of visible ASCII characters without spaces")
    return token.decode("ascii")


def is_allowed(header: str | None, token: str | None) -> bool:
    """Whether an ``Authorization`` header carries the token, compared in constant time.

    Args:
        header: value of the header, or None without one.
        token: the token that clients must send; None allows every request.
    """
    if token is None:
        return True
    scheme, _, shown = (header or "").partition(" ")
    return is_same(shown.strip(), token) and scheme.lower() == "bearer"


def is_same(shown: str, token: str) -> bool:
    """Whether a client shows the token, compared in constant time."""
    return hmac.compare_digest(shown.encode("utf-8", "replace"), token.encode("ascii"))


def behind(base: str, path: str) -> str | None:
    """The token that stands behind a path, for clients that send no header; None without one.

    Args:
        base: path of an endpoint.
        path: path of a request, without percent-encoding.
    """
    shown = path.removeprefix(base + "/")
    return shown if shown != path else None


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine alone; of names, only localhost is."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int, token: str | None) -> socket.socket:
    """Bind a socket, without listening yet.

    Args:
        host: an address of this machine.
        port: TCP port; 0 picks a free one.
        token: the token that clients must send; None is allowed on loopback alone.

    Returns:
        The bound socket.

    Raises:
        ConfigError: for an address that others reach without a token, one that this machine does
            not have, or a port in use.
    """
    if token is None and not is_loopback(host):
        allowed = (
            f"a loopback address such as 127.0.0.1, or any with --token-file or {TOKEN_VARIABLE}"
        )
        raise ConfigError("--host", host, allowed)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError("--host", host, f"an address of this machine ({error})") from error
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise _unusable(host, port, error) from error
    return made


def listen(bound: socket.socket, host: str, port: int) -> None:
    """Let clients connect.

    Args:
        bound: the socket from `bind`.
        host: its address, for the message.
        port: its port, for the message.

    Raises:
        ConfigError: when another process has taken the port meanwhile.
    """
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        raise _unusable(host, port, error) from error


def url_of(bound: socket.socket) -> str:
    """The URL at which clients reach a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _unusable(host: str, port: int, error: OSError) -> ConfigError:
    why = (error.strerror or str(error)).lower()
    if isinstance(error, PermissionError) or "in use" in why:
        return ConfigError("--port", port, f"a free port of {host}, or 0 for any ({why})")
    return ConfigError("--host", host, f"an address of this machine ({why})")
