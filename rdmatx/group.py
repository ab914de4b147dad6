"""Groups of processes that do collectives together.

group = rdmatx.Group.from_env()                # as torchrun, Slurm or mpirun set the environment
group.all_reduce(gradients, op="avg")
work = group.all_gather(everything, mine, async_op=True)
work.wait()
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from rdmatx import _C, bootstrap, tuning
from rdmatx._C import CollectiveWork, MessageWork
from rdmatx.context import DEFAULT_TIMEOUT, Context
from rdmatx.element_types import reduced_type_of, type_of
from rdmatx.errors import UsageError

__all__ = ["CollectiveWork", "Group", "MessageWork"]

_ADDRESS_BYTES = 128
#: How many groups this process has made from its environment: their keys are apart.
_made_from_environment = 0


class Group(_C.Group):
    """One rank's part of a group: every rank calls the same collectives in the same order.

    `store` is how the ranks find each other: any store of `torch.distributed`, a
    `rdmatx.bootstrap.TCPStore`, or anything with `set(key, value)` and `get(key)` that waits. Its keys
    begin with `name`, and a name is used for one group. `from_env()` needs none.

    `context` is used where one is given, and closed with the group where none is. `listen` is the
    address that the other ranks connect to, "host:port" (else `RDMATX_LISTEN`, else the loopback
    interface). `timeout` in seconds bounds the making of the group, and each collective that has none
    of its own. With a `secret`, or `RDMATX_SECRET`, the ranks prove it to each other.

    Where a rank dies, is late, aborts, or calls something else, the group fails: every pending and
    later call on every rank raises the cause, `PeerLostError`, `TimeoutError` or `UsageError`. A new
    group of the ranks that live may then be made in the same processes.

    Buffers are any contiguous memory of the host. A collective is synchronous, or with `async_op=True`
    returns a `CollectiveWork`; several may be under way, and are carried out in order, in the
    background while nobody waits. Results are the same bit by bit on all ranks and in every run.
    `algorithm` names one of `_C.collective_algorithms(...)` in place of the one chosen by size
    (`RDMATX_ALGORITHM` does so for all calls; `rdmatx tune` measures which is best for which size).

    Raises `PeerLostError` and `TimeoutError`, which name the rank that is missing.
    """

    def __init__(
        self,
        store: bootstrap.Store,
        rank: int,
        world: int,
        *,
        name: str = "rdmatx",
        context: Context | None = None,
        listen: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        secret: str | bytes | None = None,
    ) -> None:
        if not 0 <= rank < world:
            raise UsageError(f"rank {rank} of {world}: ranks count from 0")
        self._own_context = Context(timeout=timeout) if context is None else None
        self._context = self._own_context or context
        assert self._context is not None
        self._secret = secret
        listener = None
        try:
            address = listen or os.environ.get("RDMATX_LISTEN", "127.0.0.1:0")
            listener = self._context.listen(address, secret=secret)
            keys = bootstrap.PrefixStore(name, store)
            keys.set(f"rank {rank}", listener.address.encode())
            addresses = [
                listener.address if other == rank else keys.get(f"rank {other}").decode()
                for other in range(world)
            ]
            # Rank 0's table is everybody's: ranks have to choose alike.
            if rank == 0:
                keys.set("tuning", tuning.to_bytes(tuning.load()))
            self._tuning = tuning.from_bytes(keys.get("tuning"), "rank 0's table")
            super().__init__(
                self._context,
                listener,
                rank,
                addresses,
                timeout,
                _C.PreparedSecret(secret),
                self._tuning,
            )
        except BaseException:
            if listener is not None:
                listener.close()
            if self._own_context is not None:
                self._own_context.close()
            raise

    @classmethod
    def from_env(
        cls,
        *,
        context: Context | None = None,
        listen: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        secret: str | bytes | None = None,
    ) -> Group:
        """The group of all processes that were started together.

        Rank and world are those that torchrun, Slurm or mpirun set. Rank 0 is at MASTER_ADDR and
        serves a store at MASTER_PORT (29500) until the group is complete; under torchrun, whose agent
        serves a store of its own at that port, that one is used. Each rank listens at the address
        from which it reaches rank 0.
        """
        global _made_from_environment
        env = bootstrap.environment()
        _made_from_environment += 1
        name = (
            f"rdmatx/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_made_from_environment}"
        )
        listen = listen or os.environ.get("RDMATX_LISTEN") or address_towards(env.master)
        options: dict[str, Any] = {
            "name": name,
            "context": context,
            "listen": listen,
            "timeout": timeout,
            "secret": secret,
        }
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return cls(_agent_store(env, timeout), env.rank, env.world, **options)
        with bootstrap.TCPStore(env.master, serve=env.rank == 0, timeout=timeout) as store:
            return cls(store, env.rank, env.world, **options)

    # ---- collectives ----

    def all_reduce(
        self,
        tensor: Any,
        op: str = "sum",
        *,
        factor: float = 1.0,
        algorithm: str = "",
        timeout: float | None = None,
        async_op: bool = False,
    ) -> CollectiveWork | None:
        """Reduces the tensors of all ranks, in place, on every rank.

        `op` is "sum", "prod", "min", "max", "avg", "band", "bor", "bxor" or "premul_sum", whose inputs
        are multiplied by `factor` first. NaN is the minimum and the maximum of anything and NaN.
        """
        dtype, count = reduced_type_of(tensor)
        return self._call(
            "all_reduce", None, tensor, timeout, async_op,
            dtype=dtype, count=count, op=op, factor=factor, algorithm=algorithm,
        )  # fmt: skip

    def reduce_scatter(
        self,
        output: Any,
        input: Any,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        factor: float = 1.0,
        algorithm: str = "",
        timeout: float | None = None,
        async_op: bool = False,
    ) -> CollectiveWork | None:
        """Reduces the inputs of all ranks, and gives each rank its block in `output`.

        The input is a block for each rank, as large as the output; with `counts`, of so many elements.
        """
        dtype, count = reduced_type_of(output)
        return self._call(
            "reduce_scatter", input, output, timeout, async_op,
            dtype=dtype, count=count, counts=_counts(counts), op=op, factor=factor, algorithm=algorithm,
        )  # fmt: skip

    def all_gather(
        self,
        output: Any,
        input: Any,
        *,
        counts: Sequence[int] | None = None,
        algorithm: str = "",
        timeout: float | None = None,
        async_op: bool = False,
    ) -> CollectiveWork | None:
        """Gives every rank the inputs of all ranks, in order, in `output`.

        All inputs are of one size, or have `counts` elements by rank.
        """
        dtype, count = type_of(input)
        return self._call(
            "all_gather", input, output, timeout, async_op,
            dtype=dtype, count=count, counts=_counts(counts), algorithm=algorithm,
        )  # fmt: skip

    def broadcast(
        self,
        tensor: Any,
        root: int = 0,
        *,
        algorithm: str = "",
        timeout: float | None = None,
        async_op: bool = False,
    ) -> CollectiveWork | None:
        """Gives every rank the root's tensor, in place."""
        dtype, count = type_of(tensor)
        return self._call(
            "broadcast", None, tensor, timeout, async_op,
            dtype=dtype, count=count, root=root, algorithm=algorithm,
        )  # fmt: skip

    def reduce(
        self,
        tensor: Any,
        root: int = 0,
        op: str = "sum",
        *,
        output: Any = None,
        factor: float = 1.0,
        algorithm: str = "",
        timeout: float | None = None,
        async_op: bool = False,
    ) -> CollectiveWork | None:
        """Reduces the tensors of all ranks on the root: in place, or into its `output`.

        The tensors of the other ranks are left as they are.
        """
        dtype, count = reduced_type_of(tensor)
        target = (tensor if output is None else output) if self.rank == root else None
        return self._call(
            "reduce", tensor, target, timeout, async_op,
            dtype=dtype, count=count, root=root, op=op, factor=factor, algorithm=algorithm,
        )  # fmt: skip

    def gather(
        self,
        output: Any,
        input: Any,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> CollectiveWork | None:
        """Gives the root the inputs of all ranks, in order; `output` is None on the others."""
        dtype, count = type_of(input)
        return self._call(
            "gather", input, output if self.rank == root else None, timeout, async_op,
            dtype=dtype, count=count, counts=_counts(counts), root=root,
        )  # fmt: skip

    def scatter(
        self,
        output: Any,
        input: Any,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> CollectiveWork | None:
        """Gives each rank its block of the root's `input`, which is None on the others."""
        dtype, count = type_of(output)
        return self._call(
            "scatter", input if self.rank == root else None, output, timeout, async_op,
            dtype=dtype, count=count, counts=_counts(counts), root=root,
        )  # fmt: skip

    def all_to_all(
        self,
        output: Any,
        input: Any,
        *,
        send_counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> CollectiveWork | None:
        """Sends block r of the input to rank r, and gets one from each rank, in order, in `output`.

        Blocks are of one size; or of `send_counts` and `receive_counts` elements by rank, both given.
        """
        if (send_counts is None) != (receive_counts is None):
            raise UsageError("all_to_all takes send_counts and receive_counts together, or neither")
        dtype, count = type_of(input)
        if send_counts is None:
            if count % self.world:
                raise UsageError(
                    f"all_to_all of {count} elements among {self.world} ranks: they do not make equal "
                    "blocks; pass send_counts and receive_counts"
                )
            count //= self.world
        return self._call(
            "all_to_all", input, output, timeout, async_op,
            dtype=dtype, count=count, counts=_counts(send_counts),
            receive_counts=_counts(receive_counts),
        )  # fmt: skip

    def barrier(
        self, *, timeout: float | None = None, async_op: bool = False
    ) -> CollectiveWork | None:
        """Returns once every rank has called it."""
        return self._call("barrier", None, None, timeout, async_op)

    def _call(
        self,
        collective: str,
        input: Any,
        output: Any,
        timeout: float | None,
        async_op: bool,
        **details: Any,
    ) -> CollectiveWork | None:
        if async_op:
            return self._start(collective, input, output, timeout, **details)
        self._run(collective, input, output, timeout, **details)
        return None

    # ---- messages between two ranks ----

    def send(
        self,
        tensor: Any,
        destination: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> MessageWork:
        """Sends a tensor to one rank, beside the collectives.

        Returns once the memory may be used again: of a small one at once, else when it was received.
        Messages of one tag (0 to 2**63 - 1) between two ranks do not overtake each other. Any memory of
        the host will do, strided arrays too.
        """
        work = self._send(tensor, destination, tag, timeout, async_op)
        return work if async_op else self._ended(work)

    def recv(
        self,
        tensor: Any,
        source: int | None = None,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> MessageWork:
        """Receives a tensor from one rank, or (`source=None`) from the first that sends one of this tag;
        the work tells whom (`peer`) and how much (`nbytes`).

        Raises `TimeoutError` where no message comes in time: the receive is withdrawn then. Raises
        `SizeMismatchError` where the message is larger than the tensor: it is dropped. After both the
        group lives on.
        """
        work = self._receive(tensor, source, tag, timeout, async_op)
        return work if async_op else self._ended(work)

    @staticmethod
    def _ended(work: MessageWork) -> MessageWork:
        work.wait()
        return work

    # ---- the group itself ----

    def subgroup(self, ranks: Sequence[int], *, timeout: float | None = None) -> Group | None:
        """A group of some of the ranks, which count from 0 in the order given.

        Every rank of this group calls it with the same ranks; it is None on those that are not among
        them. It has connections of its own, and fails on its own.
        """
        members = list(ranks)
        if len(set(members)) != len(members) or not all(0 <= r < self.world for r in members):
            raise UsageError(
                f"subgroup({members}): ranks are different ones from 0 to {self.world - 1}"
            )
        seconds = self.timeout if timeout is None else timeout
        assert self._context is not None
        own = self.addresses[self.rank]
        listener = None
        try:
            mine = bytearray(_ADDRESS_BYTES)
            if self.rank in members:
                host = own.rpartition(":")[0]
                listener = self._context.listen(f"{host}:0", secret=self._secret)
                mine[: len(listener.address)] = listener.address.encode()
            every = bytearray(_ADDRESS_BYTES * self.world)
            self.all_gather(every, mine, timeout=seconds)
            if listener is None:
                return None
            addresses = [
                bytes(every[r * _ADDRESS_BYTES :][:_ADDRESS_BYTES]).rstrip(b"\0").decode()
                for r in members
            ]
            group = Group.__new__(Group)
            group._own_context = None
            group._context = self._context
            group._secret = self._secret
            group._tuning = self._tuning
            _C.Group.__init__(
                group,
                self._context,
                listener,
                members.index(self.rank),
                addresses,
                seconds,
                _C.PreparedSecret(self._secret),
                self._tuning,
            )
            return group
        except BaseException:
            if listener is not None:
                listener.close()
            raise

    def abort(self, reason: str = "") -> None:
        """Ends what is pending and every later call, on all ranks: here with `ClosedError`, on the others
        with a `PeerLostError` that names this rank and the reason. May be called from any thread."""
        super().abort(reason)

    def errored(self) -> Exception | None:
        """Why the group has failed; None where it has not."""
        try:
            self._raise_failure()
        except Exception as error:
            return error
        return None

    def set_timeout(self, seconds: float) -> None:
        """For collectives that have no timeout of their own, from the next one on."""
        self._set_timeout(seconds)

    def close(self) -> None:
        """Leaves the group. What is pending ends with `ClosedError`; operations of other ranks that need
        this one fail. A context that came with the group is closed too."""
        super().close()
        if self._own_context is not None:
            self._own_context.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", failed" if self.failed else ""
        return f"<Group, rank {self.rank} of {self.world}{state}>"


def _counts(counts: Sequence[int] | None) -> list[int]:
    return [] if counts is None else [int(count) for count in counts]


def address_towards(master: str) -> str:
    """Where this process is reached by whoever reaches the master."""
    host, _, port = master.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    family, kind, _, _, address = found[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of a datagram socket: sends nothing
        own = str(probe.getsockname()[0])
    return f"[{own}]:0" if ":" in own else f"{own}:0"


def _agent_store(env: bootstrap.Environment, timeout: float) -> bootstrap.Store:
    """The store that torchrun's agent serves to its workers."""
    from datetime import timedelta
    from importlib import import_module

    distributed: Any = import_module("torch.distributed")
    host, _, port = env.master.rpartition(":")
    store: bootstrap.Store = distributed.TCPStore(
        host.strip("[]"), int(port), is_master=False, timeout=timedelta(seconds=timeout)
    )
    return store
