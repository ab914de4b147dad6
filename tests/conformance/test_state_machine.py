"""ibv_modify_qp(3) and ibv_query_qp(3): the states of a reliable-connected queue pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rdmatx.errors import VerbsError
from rdmatx.verbs import Access, PathAttributes, QueuePairState
from tests.conformance.ends import ALL, QUEUE_PAIR_REFUSES, SUCCESS, End, connect

Make = Callable[..., End]
MakePair = Callable[..., tuple[End, End]]
State = QueuePairState

INIT = {"port": 1, "pkey_index": 0, "access": ALL}
RTS = {
    "send_packet_sequence_number": 0x123456,
    "max_rd_atomic": 4,
    "timeout": 13,
    "retry_count": 5,
    "rnr_retry": 6,
}


def ready_to_receive(end: End) -> dict[str, Any]:
    """What the way to RTR needs; the peer is the queue pair itself."""
    own = end.address()
    return {
        "path": PathAttributes(destination_gid=own.gid, source_gid_index=end.gid_index, port=1),
        "path_mtu": min(1024, own.mtu),
        "destination_queue_pair_number": end.qp.number,
        "receive_packet_sequence_number": 0x123456,
        "max_dest_rd_atomic": 4,
        "min_rnr_timer": 14,
    }


def bring_to(end: End, state: State) -> None:
    if state >= State.INIT:
        end.qp.modify(state=State.INIT, **INIT)
    if state >= State.READY_TO_RECEIVE:
        end.qp.modify(state=State.READY_TO_RECEIVE, **ready_to_receive(end))
    if state >= State.READY_TO_SEND:
        end.qp.modify(state=State.READY_TO_SEND, **RTS)
    if state == State.ERROR:
        end.qp.modify(state=State.ERROR)


PATH = [State.RESET, State.INIT, State.READY_TO_RECEIVE, State.READY_TO_SEND, State.ERROR]


def named(state: Any) -> str:
    return str(getattr(state, "name", state)).lower()


@pytest.mark.parametrize("state", PATH, ids=named)
def test_way_to_each_state(make_end: Make, state: State) -> None:
    """A queue pair is created in RESET; with the attributes the manual's table lists it goes on step by
    step."""
    end = make_end()
    assert end.qp.state == State.RESET
    bring_to(end, state)
    assert end.qp.state == state


@pytest.mark.parametrize("state", PATH, ids=named)
def test_error_and_reset_are_always_open(make_end: Make, state: State) -> None:
    """Any state may go to ERR, and from any state the queue pair may be taken back to RESET and used
    again."""
    end = make_end()
    bring_to(end, state)
    if state != State.RESET:
        end.qp.modify(state=State.ERROR)
        assert end.qp.state == State.ERROR
    end.qp.modify(state=State.RESET)
    assert end.qp.state == State.RESET
    bring_to(end, State.READY_TO_SEND)
    assert end.qp.state == State.READY_TO_SEND


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (State.RESET, State.READY_TO_RECEIVE),
        (State.RESET, State.READY_TO_SEND),
        (State.INIT, State.READY_TO_SEND),
        (State.READY_TO_RECEIVE, State.INIT),
        (State.READY_TO_SEND, State.INIT),
        (State.READY_TO_SEND, State.READY_TO_RECEIVE),
        (State.ERROR, State.INIT),
        (State.ERROR, State.READY_TO_RECEIVE),
        (State.ERROR, State.READY_TO_SEND),
    ],
    ids=named,
)
def test_steps_that_are_not_in_the_table(make_end: Make, before: State, after: State) -> None:
    """The table of the manual goes RESET, INIT, RTR, RTS and leaves no other way; the error names the
    step."""
    end = make_end()
    bring_to(end, before)
    attributes = {
        State.INIT: INIT,
        State.READY_TO_RECEIVE: ready_to_receive(end),
        State.READY_TO_SEND: RTS,
    }[after]
    with pytest.raises(VerbsError) as caught:
        end.qp.modify(state=after, **attributes)
    short = {State.READY_TO_RECEIVE: "RTR", State.READY_TO_SEND: "RTS", State.ERROR: "ERR"}
    for state in (before, after):
        assert short.get(state, state.name) in str(caught.value)
    assert end.qp.state == before


@pytest.mark.parametrize("missing", list(INIT))
def test_init_without_an_attribute(make_end: Make, missing: str) -> None:
    """INIT requires the port, the partition key's index and the access flags."""
    end = make_end()
    rest = {name: value for name, value in INIT.items() if name != missing}
    with pytest.raises(VerbsError, match=r"RESET.*INIT"):
        end.qp.modify(state=State.INIT, **rest)
    assert end.qp.state == State.RESET


@pytest.mark.parametrize(
    "missing",
    [
        "path",
        "path_mtu",
        "destination_queue_pair_number",
        "receive_packet_sequence_number",
        "max_dest_rd_atomic",
        "min_rnr_timer",
    ],
)
def test_ready_to_receive_without_an_attribute(make_end: Make, missing: str) -> None:
    """RTR requires the path, its MTU, the peer's number and first PSN, responder resources and the RNR
    timer."""
    end = make_end()
    bring_to(end, State.INIT)
    rest = {name: value for name, value in ready_to_receive(end).items() if name != missing}
    with pytest.raises(VerbsError, match=r"INIT.*RTR"):
        end.qp.modify(state=State.READY_TO_RECEIVE, **rest)
    assert end.qp.state == State.INIT


@pytest.mark.parametrize("missing", list(RTS))
def test_ready_to_send_without_an_attribute(make_end: Make, missing: str) -> None:
    """RTS requires the first PSN, the time-out, both retry counts and the initiator's depth."""
    end = make_end()
    bring_to(end, State.READY_TO_RECEIVE)
    rest = {name: value for name, value in RTS.items() if name != missing}
    with pytest.raises(VerbsError, match=r"RTR.*RTS"):
        end.qp.modify(state=State.READY_TO_SEND, **rest)
    assert end.qp.state == State.READY_TO_RECEIVE


def test_attribute_that_does_not_belong_to_the_step(make_end: Make) -> None:
    """Attributes outside the step's required and optional ones make the mask invalid."""
    end = make_end()
    with pytest.raises(VerbsError):
        end.qp.modify(state=State.INIT, **INIT, retry_count=3)
    assert end.qp.state == State.RESET


def test_invalid_attributes_change_nothing(make_end: Make) -> None:
    """If any of the attributes is invalid, none of them is modified, the state included."""
    end = make_end()
    bring_to(end, State.INIT)
    before = end.qp.query()
    with pytest.raises(VerbsError):
        end.qp.modify(port=99, access=Access.NONE)
    after = end.qp.query()
    assert (after.port, after.access, after.state) == (before.port, before.access, State.INIT)


def test_port_that_is_not_there(make_end: Make) -> None:
    end = make_end()
    with pytest.raises(VerbsError):
        end.qp.modify(state=State.INIT, port=99, pkey_index=0, access=ALL)
    assert end.qp.state == State.RESET


def test_current_state_is_checked(make_end: Make) -> None:
    """cur_qp_state is what the caller assumes; where it is wrong the change is refused."""
    end = make_end()
    bring_to(end, State.READY_TO_RECEIVE)
    with pytest.raises(VerbsError):
        end.qp.modify(state=State.READY_TO_SEND, current_state=State.READY_TO_SEND, **RTS)


def test_query_tells_what_was_set(make_end: Make) -> None:
    """ibv_query_qp(3) tells the attributes that ibv_modify_qp() set."""
    end = make_end()
    bring_to(end, State.READY_TO_SEND)
    status = end.qp.query()
    assert status.state == State.READY_TO_SEND
    assert status.access & ALL == ALL
    assert status.port == 1
    assert status.pkey_index == 0
    assert status.path_mtu == ready_to_receive(end)["path_mtu"]
    assert status.destination_queue_pair_number == end.qp.number
    assert status.receive_packet_sequence_number == 0x123456
    assert status.send_packet_sequence_number == 0x123456
    assert status.max_rd_atomic == 4
    assert status.max_dest_rd_atomic == 4
    assert status.min_rnr_timer == 14
    assert status.timeout == 13
    assert status.retry_count == 5
    assert status.rnr_retry == 6
    assert status.path.destination_gid == end.address().gid
    assert status.path.source_gid_index == end.gid_index


def test_access_may_change_while_ready(make_pair: MakePair) -> None:
    """RTS to RTS may change the access flags; the next operation sees them."""
    one, other = make_pair()
    source, target = one.memory(b"new" * 8), other.memory(24)
    other.qp.modify(access=Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    assert other.qp.query().access & Access.REMOTE_WRITE
    one.write(source, target)
    assert one.sent()[0].status == SUCCESS
    assert bytes(target) == b"new" * 8
    other.qp.modify(access=Access.LOCAL_WRITE)
    one.write(source, target)
    assert one.sent()[0].status.name in QUEUE_PAIR_REFUSES


def test_capabilities_are_at_least_what_was_asked(make_end: Make) -> None:
    """ibv_create_qp(3): the actual values are greater than or equal to the values requested."""
    end = make_end(
        max_send_requests=33,
        max_receive_requests=17,
        max_send_elements=3,
        max_receive_elements=2,
        max_inline_bytes=40,
    )
    for capabilities in (end.qp.capabilities, end.qp.query().capabilities):
        assert capabilities.max_send_requests >= 33
        assert capabilities.max_receive_requests >= 17
        assert capabilities.max_send_elements >= 3
        assert capabilities.max_receive_elements >= 2
        assert capabilities.max_inline_bytes >= 40


@pytest.mark.parametrize(
    "beyond",
    [
        "max_send_requests",
        "max_receive_requests",
        "max_send_elements",
        "max_receive_elements",
    ],
)
def test_more_than_the_device_can(make_end: Make, beyond: str) -> None:
    """A queue pair beyond the device's limits (ibv_query_device(3)) is refused."""
    end = make_end()
    limits = end.device.limits
    limit = limits.max_qp_wr if beyond.endswith("requests") else limits.max_sge
    with pytest.raises(VerbsError, match="ibv_create_qp"):
        make_end(**{beyond: limit + 1})


def test_numbers_differ(make_end: Make) -> None:
    """Every queue pair has a number of its own, of 24 bits, never that of a special one (0, 1)."""
    numbers = {make_end().qp.number for _ in range(8)}
    assert len(numbers) == 8
    assert all(1 < number < 1 << 24 for number in numbers)


@pytest.mark.parametrize("state", [State.RESET, State.INIT, State.READY_TO_RECEIVE], ids=named)
def test_send_before_ready_to_send_is_refused(make_end: Make, state: State) -> None:
    """Sends are posted in RTS (or later); before, ibv_post_send(3) fails at once."""
    end = make_end()
    memory = end.memory(64)
    bring_to(end, state)
    with pytest.raises(VerbsError, match="ibv_post_send"):
        end.send(memory)
    assert end.send_queue.poll() == []


def test_receives_may_be_posted_from_init_on(make_end: Make) -> None:
    """From INIT on receives may be posted; they are used once the queue pair is in RTR."""
    one, other = make_end(), make_end()
    target = other.memory(64)
    other.qp.to_init(access=ALL)
    for number in range(4):
        other.receive(target, 16 * number, 16, work_id=number)
    connect(one, other)
    source = one.memory(b"posted in INIT!!")
    one.send(source)
    assert one.sent()[0].status == SUCCESS
    completion = other.received()[0]
    assert (completion.work_id, completion.nbytes) == (0, 16)
    assert bytes(target)[:16] == b"posted in INIT!!"


def test_responder_works_in_ready_to_receive(make_end: Make) -> None:
    """A queue pair in RTR receives and answers reads and writes; RTS adds only the sending half."""
    one, other = make_end(), make_end()
    addresses = one.address(), other.address()
    other.qp.to_init(access=ALL)
    other.qp.to_ready_to_receive(addresses[0], gid_index=other.gid_index)
    one.connect(addresses[1])
    source, target = one.memory(b"w" * 32), other.memory(32)
    one.write(source, target)
    assert one.sent()[0].status == SUCCESS
    assert bytes(target) == b"w" * 32
    other.receive(target)
    one.send(source)
    assert other.received()[0].status == SUCCESS
    assert one.sent()[0].status == SUCCESS
    assert other.qp.state == State.READY_TO_RECEIVE


def test_reset_forgets_work_and_allows_reuse(make_pair: MakePair) -> None:
    """RESET drops posted work without completions; the pair connects anew and moves data."""
    one, other = make_pair()
    target = other.memory(64)
    for _ in range(3):
        other.receive(target, work_id=99)
    for end in (one, other):
        end.qp.to_reset()
        assert end.qp.state == State.RESET
    assert other.receive_queue.poll() == []
    connect(one, other)
    other.receive(target, work_id=5)
    source = one.memory(b"again" * 8)
    one.send(source)
    assert one.sent()[0].status == SUCCESS
    completion = other.received()[0]
    assert (completion.work_id, completion.status, completion.nbytes) == (5, SUCCESS, 40)
    assert bytes(target)[:40] == b"again" * 8


def test_reuse_after_an_error(make_pair: MakePair) -> None:
    """ERR is left through RESET; then the queue pair is as good as new."""
    one, other = make_pair()
    source, target = one.memory(b"y" * 64), other.memory(64)
    other.receive(target, 0, 8)
    one.send(source)  # too long for the receive: both ends fail
    assert one.sent()[0].status != SUCCESS
    other.received()
    for end in (one, other):
        end.qp.to_reset()
    connect(one, other)
    other.receive(target)
    one.send(source)
    assert one.sent()[0].status == SUCCESS
    assert other.received()[0].status == SUCCESS
    assert bytes(target) == bytes(source)


def test_connects_to_itself(make_end: Make) -> None:
    """A queue pair may be its own peer."""
    end = make_end()
    end.connect(end.address())
    source, target = end.memory(b"mirror.."), end.memory(8)
    end.receive(target)
    end.send(source)
    assert end.sent()[0].status == SUCCESS
    assert end.received()[0].nbytes == 8
    assert bytes(target) == b"mirror.."
