"""The native core of rdmatx. Use it through `rdmatx` and `rdmatx.verbs`; their pages describe it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from typing_extensions import Buffer, Self


def version() -> str: ...
def live_objects() -> dict[str, int]: ...

# ---- devices -------------------------------------------------------------------------------------------------

def list_devices(provider: str = "auto") -> list[dict[str, Any]]: ...
def choose_device(device: str | None = None, provider: str = "auto") -> tuple[str, str, str]: ...
def system_report() -> tuple[str, str, str]: ...

# ---- buffers -------------------------------------------------------------------------------------------------

class HostBuffer:
    def __init__(self, nbytes: int) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...

def buffer_info(buffer: object, writable: bool = False) -> tuple[int, int, bool]: ...

# ---- verbs ---------------------------------------------------------------------------------------------------

class Access(enum.IntFlag):
    NONE = 0
    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8
    RELAXED_ORDERING = 1048576

class QueuePairState(enum.IntEnum):
    RESET = 0
    INIT = 1
    READY_TO_RECEIVE = 2
    READY_TO_SEND = 3
    SEND_QUEUE_DRAINED = 4
    SEND_QUEUE_ERROR = 5
    ERROR = 6

class PortState(enum.IntEnum):
    NOP = 0
    DOWN = 1
    INITIALIZING = 2
    ARMED = 3
    ACTIVE = 4
    ACTIVE_DEFER = 5

class LinkLayer(enum.IntEnum):
    UNSPECIFIED = 0
    INFINIBAND = 1
    ETHERNET = 2

class GidType(enum.IntEnum):
    INFINIBAND = 0
    ROCE_V1 = 1
    ROCE_V2 = 2

class SendOpcode(enum.IntEnum):
    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMMEDIATE = 1
    SEND = 2
    SEND_WITH_IMMEDIATE = 3
    RDMA_READ = 4
    COMPARE_SWAP = 5
    FETCH_ADD = 6

class CompletionOpcode(enum.IntEnum):
    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMPARE_SWAP = 3
    FETCH_ADD = 4
    RECEIVE = 128
    RECEIVE_WRITE_WITH_IMMEDIATE = 129

class WorkCompletionStatus(enum.IntEnum):
    SUCCESS = 0
    LOCAL_LENGTH_ERROR = 1
    LOCAL_QP_OPERATION_ERROR = 2
    LOCAL_EEC_OPERATION_ERROR = 3
    LOCAL_PROTECTION_ERROR = 4
    FLUSHED = 5
    MEMORY_WINDOW_BIND_ERROR = 6
    BAD_RESPONSE = 7
    LOCAL_ACCESS_ERROR = 8
    REMOTE_INVALID_REQUEST = 9
    REMOTE_ACCESS_ERROR = 10
    REMOTE_OPERATION_ERROR = 11
    RETRY_EXCEEDED = 12
    RECEIVER_NOT_READY_RETRY_EXCEEDED = 13
    LOCAL_RDD_VIOLATION = 14
    REMOTE_INVALID_RD_REQUEST = 15
    REMOTE_ABORTED = 16
    INVALID_EEC_NUMBER = 17
    INVALID_EEC_STATE = 18
    FATAL = 19
    RESPONSE_TIMEOUT = 20
    GENERAL_ERROR = 21

class PortAttributes:
    number: int
    state: PortState
    link_layer: LinkLayer
    active_mtu: int
    max_mtu: int
    lid: int
    max_message_bytes: int
    gid_table_length: int
    pkey_table_length: int
    gigabits_per_second: float

class GidEntry:
    index: int
    gid: str
    type: GidType
    network_device: str

class AsyncEvent:
    type: int
    name: str
    queue_pair_number: int
    port: int

class DeviceLimits:
    max_mr_size: int
    max_qp: int
    max_qp_wr: int
    max_sge: int
    max_sge_rd: int
    max_cq: int
    max_cqe: int
    max_mr: int
    max_pd: int
    max_qp_rd_atom: int
    max_qp_init_rd_atom: int
    max_srq: int
    max_srq_wr: int
    max_srq_sge: int
    max_pkeys: int
    atomics: bool

class _Closable:
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

class Device(_Closable):
    def __init__(self, name: str | None = None, *, provider: str = "auto") -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def guid(self) -> str: ...
    @property
    def limits(self) -> DeviceLimits: ...
    @property
    def port_count(self) -> int: ...
    @property
    def async_fd(self) -> int: ...
    def query_port(self, port: int = 1) -> PortAttributes: ...
    def query_gids(self, port: int = 1) -> list[GidEntry]: ...
    def query_gid(self, port: int, index: int) -> GidEntry: ...
    def query_pkey(self, port: int, index: int) -> int: ...
    def next_async_event(self, *, timeout: float | None = None) -> AsyncEvent: ...

class ProtectionDomain(_Closable):
    def __init__(self, device: Device) -> None: ...

class MemoryRegion(_Closable):
    def __init__(
        self, domain: ProtectionDomain, buffer: object, *, access: Access = Access.LOCAL_WRITE
    ) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def access(self) -> Access: ...
    @property
    def local_key(self) -> int: ...
    @property
    def remote_key(self) -> int: ...

class CompletionChannel(_Closable):
    def __init__(self, device: Device) -> None: ...
    def fileno(self) -> int: ...
    def get_event(self, *, timeout: float | None = None) -> CompletionQueue: ...

class CompletionQueue(_Closable):
    def __init__(
        self, device: Device, entries: int, *, channel: CompletionChannel | None = None
    ) -> None: ...
    @property
    def capacity(self) -> int: ...
    def poll(self, max_completions: int = 16) -> list[Completion]: ...
    def wait(self, count: int = 1, *, timeout: float = 10.0) -> list[Completion]: ...
    def arm(self, *, solicited_only: bool = False) -> None: ...
    def resize(self, entries: int) -> None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class Completion:
    @property
    def work_id(self) -> int: ...
    @property
    def status(self) -> WorkCompletionStatus: ...
    @property
    def status_name(self) -> str: ...
    @property
    def succeeded(self) -> bool: ...
    @property
    def opcode(self) -> CompletionOpcode: ...
    @property
    def is_receive(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def immediate(self) -> int | None: ...
    @property
    def queue_pair_number(self) -> int: ...
    @property
    def vendor_error(self) -> int: ...
    @property
    def flags(self) -> int: ...
    def raise_for_status(self) -> None: ...

class SendWork:
    @staticmethod
    def send(*, work_id: int = 0) -> SendWork: ...
    @staticmethod
    def write(remote_address: int, remote_key: int, *, work_id: int = 0) -> SendWork: ...
    @staticmethod
    def read(remote_address: int, remote_key: int, *, work_id: int = 0) -> SendWork: ...
    @staticmethod
    def fetch_add(
        remote_address: int, remote_key: int, value: int, *, work_id: int = 0
    ) -> SendWork: ...
    @staticmethod
    def compare_swap(
        remote_address: int, remote_key: int, expected: int, desired: int, *, work_id: int = 0
    ) -> SendWork: ...
    def add(self, region: MemoryRegion, offset: int = 0, nbytes: int | None = None) -> Self: ...
    def add_raw(self, address: int, nbytes: int, local_key: int) -> Self: ...
    def add_inline(self, buffer: Buffer) -> Self: ...
    def signaled(self, on: bool = True) -> Self: ...
    def fenced(self, on: bool = True) -> Self: ...
    def solicited(self, on: bool = True) -> Self: ...
    def inlined(self, on: bool = True) -> Self: ...
    def immediate(self, value: int) -> Self: ...
    @property
    def work_id(self) -> int: ...
    @property
    def opcode(self) -> SendOpcode: ...
    @property
    def nbytes(self) -> int: ...

class ReceiveWork:
    def __init__(self, *, work_id: int = 0) -> None: ...
    def add(self, region: MemoryRegion, offset: int = 0, nbytes: int | None = None) -> Self: ...
    def add_raw(self, address: int, nbytes: int, local_key: int) -> Self: ...
    @property
    def work_id(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class SharedReceiveQueue(_Closable):
    def __init__(
        self, domain: ProtectionDomain, max_requests: int, *, max_elements: int = 1
    ) -> None: ...
    @property
    def max_requests(self) -> int: ...
    @property
    def max_elements(self) -> int: ...
    def post_receive(self, work: ReceiveWork | Sequence[ReceiveWork]) -> None: ...
    def set_limit(self, requests: int) -> None: ...
    def resize(self, max_requests: int) -> None: ...

class Address:
    def __init__(
        self,
        *,
        queue_pair_number: int,
        packet_sequence_number: int = 0,
        gid: str = "::",
        gid_index: int = 0,
        gid_type: GidType = GidType.INFINIBAND,
        lid: int = 0,
        port: int = 1,
        link_layer: LinkLayer = LinkLayer.UNSPECIFIED,
        mtu: int = 1024,
    ) -> None: ...
    @staticmethod
    def from_bytes(data: Buffer) -> Address: ...
    def to_bytes(self) -> bytes: ...
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def queue_pair_number(self) -> int: ...
    @property
    def packet_sequence_number(self) -> int: ...
    @property
    def gid(self) -> str: ...
    @property
    def gid_index(self) -> int: ...
    @property
    def gid_type(self) -> GidType: ...
    @property
    def lid(self) -> int: ...
    @property
    def port(self) -> int: ...
    @property
    def link_layer(self) -> LinkLayer: ...
    @property
    def mtu(self) -> int: ...

class PathAttributes:
    def __init__(
        self,
        *,
        destination_gid: str = "::",
        source_gid_index: int = 0,
        destination_lid: int = 0,
        port: int = 1,
        is_global: bool = True,
        hop_limit: int = 64,
        traffic_class: int = 0,
        service_level: int = 0,
        flow_label: int = 0,
    ) -> None: ...
    @property
    def destination_gid(self) -> str: ...
    @property
    def source_gid_index(self) -> int: ...
    @property
    def destination_lid(self) -> int: ...
    @property
    def port(self) -> int: ...
    @property
    def is_global(self) -> bool: ...
    @property
    def hop_limit(self) -> int: ...
    @property
    def traffic_class(self) -> int: ...
    @property
    def service_level(self) -> int: ...
    @property
    def flow_label(self) -> int: ...

class QueuePairCapabilities:
    @property
    def max_send_requests(self) -> int: ...
    @property
    def max_receive_requests(self) -> int: ...
    @property
    def max_send_elements(self) -> int: ...
    @property
    def max_receive_elements(self) -> int: ...
    @property
    def max_inline_bytes(self) -> int: ...

class QueuePairStatus:
    @property
    def state(self) -> QueuePairState: ...
    @property
    def access(self) -> Access: ...
    @property
    def port(self) -> int: ...
    @property
    def pkey_index(self) -> int: ...
    @property
    def path(self) -> PathAttributes: ...
    @property
    def path_mtu(self) -> int: ...
    @property
    def destination_queue_pair_number(self) -> int: ...
    @property
    def receive_packet_sequence_number(self) -> int: ...
    @property
    def send_packet_sequence_number(self) -> int: ...
    @property
    def max_rd_atomic(self) -> int: ...
    @property
    def max_dest_rd_atomic(self) -> int: ...
    @property
    def min_rnr_timer(self) -> int: ...
    @property
    def timeout(self) -> int: ...
    @property
    def retry_count(self) -> int: ...
    @property
    def rnr_retry(self) -> int: ...
    @property
    def capabilities(self) -> QueuePairCapabilities: ...

class QueuePair(_Closable):
    def __init__(
        self,
        domain: ProtectionDomain,
        send_queue: CompletionQueue,
        receive_queue: CompletionQueue | None = None,
        *,
        max_send_requests: int = 64,
        max_receive_requests: int = 64,
        max_send_elements: int = 1,
        max_receive_elements: int = 1,
        max_inline_bytes: int = 0,
        signal_all: bool = False,
        shared_receive_queue: SharedReceiveQueue | None = None,
    ) -> None: ...
    @property
    def number(self) -> int: ...
    @property
    def capabilities(self) -> QueuePairCapabilities: ...
    @property
    def state(self) -> QueuePairState: ...
    def local_address(self, *, port: int = 1, gid_index: int = 0) -> Address: ...
    def query(self) -> QueuePairStatus: ...
    def modify(
        self,
        *,
        state: QueuePairState | None = None,
        current_state: QueuePairState | None = None,
        access: Access | None = None,
        pkey_index: int | None = None,
        port: int | None = None,
        path: PathAttributes | None = None,
        path_mtu: int | None = None,
        destination_queue_pair_number: int | None = None,
        receive_packet_sequence_number: int | None = None,
        send_packet_sequence_number: int | None = None,
        max_rd_atomic: int | None = None,
        max_dest_rd_atomic: int | None = None,
        min_rnr_timer: int | None = None,
        timeout: int | None = None,
        retry_count: int | None = None,
        rnr_retry: int | None = None,
    ) -> None: ...
    def to_reset(self) -> None: ...
    def to_init(self, *, port: int = 1, access: Access = ...) -> None: ...
    def to_ready_to_receive(
        self,
        remote: Address,
        *,
        port: int = 1,
        gid_index: int = 0,
        path_mtu: int = 0,
        min_rnr_timer: int = 12,
        max_rd_atomic: int = 16,
        traffic_class: int = 0,
        service_level: int = 0,
        hop_limit: int = 64,
    ) -> None: ...
    def to_ready_to_send(
        self, *, timeout: int = 14, retry_count: int = 7, rnr_retry: int = 7, max_rd_atomic: int = 16
    ) -> None: ...
    def to_error(self) -> None: ...
    def connect(
        self,
        remote: Address,
        *,
        port: int = 1,
        gid_index: int = 0,
        access: Access = ...,
        path_mtu: int = 0,
        timeout: int = 14,
        retry_count: int = 7,
        rnr_retry: int = 7,
        min_rnr_timer: int = 12,
        max_rd_atomic: int = 16,
        traffic_class: int = 0,
        service_level: int = 0,
        hop_limit: int = 64,
    ) -> None: ...
    def post_send(self, work: SendWork | Sequence[SendWork]) -> None: ...
    def post_receive(self, work: ReceiveWork | Sequence[ReceiveWork]) -> None: ...

# ---- messaging -----------------------------------------------------------------------------------------------
