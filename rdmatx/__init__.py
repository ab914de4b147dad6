"""rdmatx moves tensors between machines over RDMA.

Importing it does no work: names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rdmatx import errors as errors
    from rdmatx import topology as topology
    from rdmatx import verbs as verbs
    from rdmatx.buffers import HostBuffer as HostBuffer
    from rdmatx.buffers import empty as empty
    from rdmatx.context import Connection as Connection
    from rdmatx.context import Context as Context
    from rdmatx.context import Listener as Listener
    from rdmatx.context import Region as Region
    from rdmatx.context import RemoteKey as RemoteKey
    from rdmatx.context import WaitingMessage as WaitingMessage
    from rdmatx.context import Work as Work
    from rdmatx.devices import DeviceInfo as DeviceInfo
    from rdmatx.devices import choose_device as choose_device
    from rdmatx.devices import list_devices as list_devices
    from rdmatx.devices import system_report as system_report
    from rdmatx.errors import Error as Error
    from rdmatx.group import CollectiveWork as CollectiveWork
    from rdmatx.group import Group as Group
    from rdmatx.group import MessageWork as MessageWork

#: Where each public name lives; a module has itself.
_home = {
    "CollectiveWork": "rdmatx.group",
    "Connection": "rdmatx.context",
    "Context": "rdmatx.context",
    "DeviceInfo": "rdmatx.devices",
    "Error": "rdmatx.errors",
    "Group": "rdmatx.group",
    "HostBuffer": "rdmatx.buffers",
    "Listener": "rdmatx.context",
    "MessageWork": "rdmatx.group",
    "Region": "rdmatx.context",
    "RemoteKey": "rdmatx.context",
    "WaitingMessage": "rdmatx.context",
    "Work": "rdmatx.context",
    "choose_device": "rdmatx.devices",
    "empty": "rdmatx.buffers",
    "errors": "",
    "list_devices": "rdmatx.devices",
    "system_report": "rdmatx.devices",
    "topology": "",
    "verbs": "",
}

__all__ = ["__version__", *_home]


def __getattr__(name: str) -> Any:
    home = _home.get(name)
    if home is None:
        raise AttributeError(f"module 'rdmatx' has no attribute {name!r}")
    value = getattr(import_module(home), name) if home else import_module(f"rdmatx.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
