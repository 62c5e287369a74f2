"""Joining a Ray cluster, and what keeps a machine from it, in a sentence each."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from tilewright import __version__
from tilewright.errors import DeviceUnavailable

COMPILES = "compile"  # the resource of nodes that compile for the devices of all
_REACH_S = 5.0
_JOIN_S = 30.0


def join(address: str, namespace: str) -> Any:
    """The module ``ray``, connected to the cluster whose head is at ``address``.

    Raises:
        DeviceUnavailable: Ray is not installed, nothing listens there, or the cluster does not take this
            machine.
    """
    try:
        import ray
    except ImportError as error:
        raise DeviceUnavailable(
            "--engine ray needs Ray: pip install 'tilewright-service[fleet]', the same version on every node"
        ) from error
    _reach(address)
    late = threading.Timer(
        _JOIN_S, os._exit, [1]
    )  # NOTE: Ray itself waits for minutes, and cannot be stopped
    late.start()
    try:
        _need_token(ray, address)
        ray.init(address, namespace=namespace, log_to_driver=False, configure_logging=False)
    except (RuntimeError, ConnectionError, ValueError) as error:
        raise DeviceUnavailable(_why_not_joined(address, str(error), ray.__version__)) from error
    finally:
        late.cancel()
    return ray


def _reach(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise DeviceUnavailable(f"--ray-address must be host:port of a Ray head, got {address!r}")
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except OSError as error:
        raise DeviceUnavailable(
            f"no Ray head answers at {address} ({error.strerror or error}); start one with "
            "'ray start --head', or give another --ray-address"
        ) from error


def _need_token(ray: Any, address: str) -> None:
    """NOTE: Ray itself repeats a token for 20 s after it was refused."""
    try:
        ray._raylet.GcsClient(address=address)
    except ray.exceptions.AuthenticationError as error:
        raise DeviceUnavailable(
            f"the Ray cluster at {address} takes only machines that have its token; set RAY_AUTH_MODE=token "
            "and its RAY_AUTH_TOKEN"
        ) from error
    except ray.exceptions.RayError:
        return  # such as a head that is not ready yet, which Ray asks again


def _why_not_joined(address: str, reason: str, version: str) -> str:
    first = " ".join(reason.split())[:300]
    if "ersion mismatch" in reason:
        return (
            f"the cluster at {address} runs another version than Ray {version} and this Python; use the same "
            f"on every node ({first})"
        )
    if "ailed to connect" in reason:
        return f"the Ray cluster at {address} does not answer this machine; restart it ({first})"
    return (
        f"this machine is no node of the Ray cluster at {address}; run 'ray start --address {address}' here "
        f"first ({first})"
    )


def probe() -> Callable[[], dict[str, str]]:
    """A function that says which release a node has.

    NOTE: it is nested so that Ray sends it by value: it must also run where this package is missing.
    """

    def look() -> dict[str, str]:
        try:
            if importlib.util.find_spec("service.fleet.actor") is None:
                return {"missing": "No module named 'service.fleet.actor'"}
            return {"version": importlib.import_module("tilewright").__version__}
        except ImportError as error:
            return {"missing": str(error)}

    return look


def why_refused(node: str, found: dict[str, str]) -> str | None:
    """Why a node that the probe looked at cannot work for this service; None if it can."""
    if "missing" in found:
        return f"node {node} has no tilewright ({found['missing']}); install {__version__} there"
    if found["version"] != __version__:
        return f"node {node} has tilewright {found['version']}; install {__version__} there"
    return None
