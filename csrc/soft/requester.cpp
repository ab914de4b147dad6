#include <algorithm>
#include <cerrno>
#include <cstring>

#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/peer.hpp"
#include "soft/send_queue.hpp"
#include "soft/tcp_link.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {
namespace {

/// The longest copy between two looks at anything else: a deregistration waits for at most this.
constexpr uint64_t slice_bytes = 4 * 1024 * 1024;
/// A write of this size goes to a peer that polls the way that WriteWays chooses. A shorter one goes through
/// the ring rather than wait until what was sent before it is executed; of a longer one the ring would take
/// more cache than there is.
constexpr uint64_t ring_from_bytes = 8 * 1024;
constexpr uint64_t ring_to_bytes = 4 * 1024 * 1024;
/// Its pieces: while the peer takes one out of the ring, the next goes in.
constexpr uint64_t ring_piece_bytes = 32 * 1024;
/// A copied write from here on is open to the help of a peer that polls. Below, it is done before the peer
/// would see it.
constexpr uint64_t share_from_bytes = 2 * SharedWrite::smallest_piece;

void commit(QueuePair& qp) {
  qp.requests_out.commit();
  wake_responder(qp);
}

uint8_t last_flags(const SendEntry& entry, bool with_immediate) {
  return static_cast<uint8_t>(record_last | (with_immediate ? record_immediate : 0) |
                              (entry.solicited ? record_solicited : 0));
}

/// The next piece of the payload in the ring, of at most `most` bytes, not committed yet. Null while there is
/// no room, or where the entry has failed.
Record* put_piece(QueuePair& qp, SendEntry& entry, RecordKind kind, uint64_t most) {
  std::vector<iovec>& pieces = qp.pieces;
  const uint64_t bytes = std::min(entry.length - entry.offset, most);
  Record* record = qp.requests_out.reserve(bytes);
  if (!record) return nullptr;
  if (!send_pieces(qp, entry, entry.offset, bytes, 0, pieces)) {
    fail(entry, IBV_WC_LOC_PROT_ERR);
    return nullptr;
  }
  record->kind = kind;
  gather(reinterpret_cast<std::byte*>(record + 1), pieces);
  entry.offset += bytes;
  return record;
}

Step step_send(QueuePair& qp, SendEntry& entry) {
  do {
    Record* record = put_piece(qp, entry, RecordKind::send, Ring::max_payload);
    if (!record) return Step::blocked;
    if (entry.offset == entry.length) {
      record->flags = last_flags(entry, entry.opcode == IBV_WR_SEND_WITH_IMM);
      record->immediate = entry.immediate;
      entry.message = ++qp.messages_sent;
      entry.phase = SendEntry::Phase::awaiting;
    }
    commit(qp);
  } while (entry.phase != SendEntry::Phase::awaiting);
  return Step::done;
}

/// One piece of a write through the ring, for the responder to put in place. False while there is no room.
bool put_write_piece(QueuePair& qp, SendEntry& entry) {
  const uint64_t place = entry.remote_address + entry.offset;
  const uint64_t began = entry.timed ? now_ns() : 0;
  Record* record = put_piece(qp, entry, RecordKind::write, ring_piece_bytes);
  if (!record) return false;
  if (entry.timed) {
    entry.ns += now_ns() - began;
    // The first time round, memory is touched that nobody has touched before.
    if (entry.offset == entry.length && qp.requests_out.is_warm())
      qp.ways.took(WriteWays::ring, entry.length, entry.ns);
  }
  record->key = entry.remote_key;
  record->address = place;
  commit(qp);
  return true;
}

/// Tells the responder that a write is complete, where it has to know: an immediate, or pieces in the ring.
Step finish_write(QueuePair& qp, SendEntry& entry) {
  Record* record = qp.requests_out.reserve(0);
  if (!record) return Step::blocked;
  record->kind = RecordKind::write_last;
  record->flags = last_flags(entry, entry.opcode == IBV_WR_RDMA_WRITE_WITH_IMM);
  record->immediate = entry.immediate;
  record->length = entry.length;
  entry.message = ++qp.messages_sent;
  entry.phase = SendEntry::Phase::awaiting;
  commit(qp);
  return Step::done;
}

/// The requester found that the responder may not be accessed so: the responder fails too, as after a NAK.
Step fail_remote_access(QueuePair& qp, SendEntry& entry) {
  if (Record* record = qp.requests_out.reserve(0)) {
    record->kind = RecordKind::fault;
    commit(qp);
  }
  return fail(entry, IBV_WC_REM_ACCESS_ERR);
}

/// Copies a part of the payload, and turns the outcome into the entry's. `done` means that the part is in
/// place or that the entry goes by the ring from now on.
Step copy_part(QueuePair& qp, SendEntry& entry, uint64_t offset, uint64_t bytes) {
  switch (copy_directly(qp, entry, offset, bytes)) {
    case 0:
      entry.offset += bytes;
      return Step::done;
    case EINVAL:
      return fail(entry, IBV_WC_LOC_PROT_ERR);
    case EACCES:
      return fail_remote_access(qp, entry);
    case ESRCH:  // the process is gone; the wire is about to hear of it
    case ESHUTDOWN:
      return Step::blocked;
    case EPERM:
    case ENOSYS:
      qp.peer->forbid_direct_copies();
      close_shared_write(qp);
      entry.only_ring = true;
      entry.offset = 0;  // the ring carries the whole of it
      return Step::done;
    default:
      return fail(entry, IBV_WC_REM_OP_ERR);
  }
}

/// Alone, slice by slice.
Step copy_slices(QueuePair& qp, SendEntry& entry) {
  const uint64_t stop = std::min(entry.length, entry.offset + turn_bytes);
  while (!entry.only_ring && entry.offset < stop) {
    const uint64_t slice = std::min(entry.length - entry.offset, slice_bytes);
    if (copy_part(qp, entry, entry.offset, slice) == Step::blocked) return Step::blocked;
  }
  return entry.only_ring || entry.offset == entry.length ? Step::done : Step::blocked;
}

/// The responder polls, and how payload goes is left to us.
bool peer_takes_part(const QueuePair& qp) {
  return qp.outbound->state().responder_asleep.load(std::memory_order_relaxed) == 0 &&
         qp.context->instance->wire_choice() == WireChoice::automatic && !qp.peer->is_self();
}

/// Opens a large write of one contiguous source to the help of a responder that polls: it is not asleep.
void share_write(QueuePair& qp, SendEntry& entry) {
  std::vector<iovec>& pieces = qp.pieces;
  const bool possible = entry.length >= share_from_bytes && peer_takes_part(qp) &&
                        qp.peer->can_copy_directly() && !entry.inline_data;
  if (!possible || !send_pieces(qp, entry, 0, entry.length, 0, pieces) || pieces.size() != 1) return;
  SharedWrite& write = qp.outbound->state().shared_write;
  write.source.store(reinterpret_cast<uint64_t>(pieces[0].iov_base), std::memory_order_relaxed);
  write.target.store(entry.remote_address, std::memory_order_relaxed);
  write.length.store(entry.length, std::memory_order_relaxed);
  write.key.store(entry.remote_key, std::memory_order_relaxed);
  write.claims.store(uint64_t{++qp.shared_generation} << 32, std::memory_order_release);
  entry.shared = true;
}

/// The next piece nobody has claimed yet; `pieces` or more where there is none. Never counts past the end:
/// that would run into the generation.
uint64_t claim_piece(SharedWrite& write, uint64_t pieces) {
  uint64_t claims = write.claims.load(std::memory_order_acquire);
  while ((claims & SharedWrite::closed) < pieces && !write.claims.compare_exchange_weak(claims, claims + 1)) {
  }
  return claims & SharedWrite::closed;
}

/// This side's part of a shared write; done once every piece is in place, whoever put it there.
Step copy_pieces(QueuePair& qp, SendEntry& entry) {
  SharedWrite& write = qp.outbound->state().shared_write;
  const uint64_t pieces = SharedWrite::pieces(entry.length);
  const uint64_t piece_bytes = SharedWrite::piece_bytes(entry.length);
  for (uint64_t moved = 0; moved < turn_bytes; moved += piece_bytes) {
    // What is claimed is copied at once: a claim that is not followed up would never end.
    const uint64_t piece = claim_piece(write, pieces);
    if (piece >= pieces) {
      const uint64_t helped = write.helped.load(std::memory_order_acquire);
      const uint64_t by_peer = helped >> 32 == qp.shared_generation ? helped & SharedWrite::closed : 0;
      const uint64_t own = (entry.offset + piece_bytes - 1) / piece_bytes;
      if (own + by_peer < pieces) return Step::blocked;  // the peer is at the last one
      entry.shared = false;
      entry.offset = write.failed.load() == qp.shared_generation ? 0 : entry.length;
      return Step::done;
    }
    const uint64_t offset = piece * piece_bytes;
    const uint64_t bytes = std::min(entry.length - offset, piece_bytes);
    if (copy_part(qp, entry, offset, bytes) == Step::blocked) return Step::blocked;
    if (entry.only_ring) return Step::done;
  }
  return Step::blocked;
}

/// Decides, once, whether a write goes through the ring although the kernel may allow a copy.
void choose_way(QueuePair& qp, SendEntry& entry) {
  if (entry.length > ring_to_bytes || !peer_takes_part(qp)) return;
  if (entry.length < ring_from_bytes) {
    entry.only_ring = qp.send_head != qp.send_next;
  } else if (!qp.peer->memory().is_shared(entry.remote_key)) {
    const WriteWays::Choice choice = qp.ways.choose(entry.length);
    entry.only_ring = choice.way == WriteWays::ring;
    entry.timed = choice.timed;
  }
}

/// Alone, or together with a peer that polls; done once all is in place, or where the ring has to serve.
Step copy_write(QueuePair& qp, SendEntry& entry) {
  if (entry.phase == SendEntry::Phase::chosen) {
    if (qp.send_head != qp.send_next) return Step::blocked;  // what went before is not executed yet
    if (entry.timed) entry.ns = now_ns();
    share_write(qp, entry);
  }
  entry.phase = SendEntry::Phase::moving;
  if (entry.shared && copy_pieces(qp, entry) == Step::blocked) return Step::blocked;
  if (copy_slices(qp, entry) == Step::blocked) return Step::blocked;
  if (entry.timed && !entry.only_ring) qp.ways.took(WriteWays::copy, entry.length, now_ns() - entry.ns);
  entry.timed = false;
  return Step::done;
}

/// A write goes through the ring, or is copied straight into the peer's memory.
Step step_write(QueuePair& qp, SendEntry& entry, Effort effort) {
  if (effort == Effort::brief && entry.length > brief_bytes) return Step::blocked;
  if (entry.phase == SendEntry::Phase::queued) {
    entry.phase = SendEntry::Phase::chosen;
    if (!entry.only_ring && entry.length > 0) choose_way(qp, entry);
  }
  if (!entry.only_ring && entry.length > 0 && copy_write(qp, entry) == Step::blocked) return Step::blocked;
  while (entry.offset < entry.length)
    if (!put_write_piece(qp, entry)) return Step::blocked;
  if (entry.only_ring || entry.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) return finish_write(qp, entry);
  entry.phase = SendEntry::Phase::done;
  return Step::done;
}

/// Takes what the responder answered into the scatter list.
Step take_responses(QueuePair& qp, SendEntry& entry) {
  std::vector<iovec>& pieces = qp.pieces;
  bool corrupt = false;
  while (const Record* record = qp.responses_in.front(&corrupt)) {
    const uint64_t bytes = qp.responses_in.front_bytes();
    if (bytes > entry.length - entry.offset) corrupt = true;
    if (corrupt) break;
    if (!send_pieces(qp, entry, entry.offset, bytes, IBV_ACCESS_LOCAL_WRITE, pieces))
      return fail(entry, IBV_WC_LOC_PROT_ERR);
    scatter(reinterpret_cast<const std::byte*>(record + 1), pieces);
    entry.offset += bytes;
    qp.responses_in.pop();
    wake_responder(qp);
  }
  if (corrupt) return fail(entry, IBV_WC_BAD_RESP_ERR);
  if (entry.offset < entry.length) return Step::blocked;
  entry.phase = SendEntry::Phase::done;
  return Step::done;
}

/// Asks the responder for a read or an atomic.
Step ask(QueuePair& qp, SendEntry& entry, RecordKind kind) {
  if (entry.phase == SendEntry::Phase::queued) {
    Record* record = qp.requests_out.reserve(0);
    if (!record) return Step::blocked;
    record->kind = kind;
    record->address = entry.remote_address;
    record->key = entry.remote_key;
    record->length = entry.length;
    record->operand = entry.operand;
    record->swap = entry.swap;
    entry.message = ++qp.messages_sent;
    entry.phase = SendEntry::Phase::moving;
    commit(qp);
  }
  return take_responses(qp, entry);
}

Step step_read(QueuePair& qp, SendEntry& entry, Effort effort) {
  if (effort == Effort::brief && entry.length > brief_bytes) return Step::blocked;
  if (!entry.only_ring && entry.length > 0) {
    if (qp.send_head != qp.send_next) return Step::blocked;
    if (copy_slices(qp, entry) == Step::blocked) return Step::blocked;
  }
  if (entry.only_ring) return ask(qp, entry, RecordKind::read);
  entry.phase = SendEntry::Phase::done;
  return Step::done;
}

Step step(QueuePair& qp, SendEntry& entry, Effort effort) {
  switch (entry.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return step_send(qp, entry);
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return step_write(qp, entry, effort);
    case IBV_WR_RDMA_READ:
      return step_read(qp, entry, effort);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return ask(qp, entry, RecordKind::compare_swap);
    default:
      return ask(qp, entry, RecordKind::fetch_add);
  }
}

void check_receiver_ready(QueuePair& qp) {
  ChannelState& channel = qp.outbound->state();
  uint64_t message = channel.receiver_not_ready.load(std::memory_order_acquire);
  if (message == 0 || message == rnr_cancelled || qp.send_head == qp.send_tail) {
    qp.not_ready_since_ns = 0;
    return;
  }
  if (qp.attributes.rnr_retry == 7) return;  // for ever
  const uint64_t now = now_ns();
  if (qp.not_ready_since_ns == 0) qp.not_ready_since_ns = now;
  const uint64_t budget = uint64_t{channel.rnr_timer_ns.load()} * qp.attributes.rnr_retry;
  if (now - qp.not_ready_since_ns >= budget &&
      channel.receiver_not_ready.compare_exchange_strong(message, rnr_cancelled))
    enter_error(qp, IBV_WC_RNR_RETRY_EXC_ERR);
}

}  // namespace

bool progress_requests(QueuePair& qp, Effort effort) {
  if (qp.tcp) return tcp_progress_requests(qp, effort);
  if (qp.send_head == qp.send_tail) return false;
  const int state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTS && state != IBV_QPS_SQD) return false;
  bool moved = reap(qp);
  if (!qp.outbound || qp.outbound->state().open.load(std::memory_order_acquire) == 0) {
    check_unreachable(qp);
    return moved;
  }
  qp.unreachable_since_ns = 0;
  while (qp.send_next < qp.send_tail && qp.state.load(std::memory_order_relaxed) == IBV_QPS_RTS) {
    SendEntry& entry = qp.send_at(qp.send_next);
    if (entry.phase == SendEntry::Phase::failed) break;
    const uint64_t before = entry.offset;
    const Step outcome = step(qp, entry, effort);
    moved |= outcome == Step::done || entry.offset != before;
    if (outcome == Step::blocked) break;
    ++qp.send_next;
    if (entry.phase == SendEntry::Phase::done) reap(qp);
  }
  if (qp.send_head < qp.send_next || qp.send_next < qp.send_tail) moved |= reap(qp);
  if (qp.outbound) check_receiver_ready(qp);
  return moved;
}

}  // namespace rdmatx::soft
