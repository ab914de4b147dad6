// Requests of a queue pair whose peer is reached over TCP; see tcp_link.hpp.

#include <algorithm>
#include <cstring>

#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/send_queue.hpp"
#include "soft/tcp_link.hpp"
#include "soft/tcp_port.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {
namespace {

/// What is queued ahead of a socket, so that one call sends many small messages.
constexpr size_t max_queued = 64;
/// A message from here on is cut over the streams, into pieces of these sizes.
constexpr uint64_t cut_from_bytes = 512 * 1024, least_piece = 256 * 1024, largest_piece = 1024 * 1024;
/// What post_send hands to the kernel itself.
constexpr uint64_t brief_send_bytes = 256 * 1024;
/// While nothing is under way an answer can only be an end: looked for now and then by whoever polls.
constexpr uint32_t looks_between = 64;

bool asks(const SendEntry& entry) {
  return entry.opcode == IBV_WR_RDMA_READ || is_atomic(entry.opcode);
}

RecordKind kind_of(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return RecordKind::write;
    case IBV_WR_RDMA_READ:
      return RecordKind::read;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return RecordKind::compare_swap;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return RecordKind::fetch_add;
    default:
      return RecordKind::send;
  }
}

RequestFrame frame_of(const QueuePair& qp, const SendEntry& entry) {
  RequestFrame frame;
  const bool immediate = entry.opcode == IBV_WR_SEND_WITH_IMM || entry.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  frame.record.kind = kind_of(entry.opcode);
  frame.record.flags =
      static_cast<uint8_t>((immediate ? record_immediate : 0) | (entry.solicited ? record_solicited : 0));
  frame.record.immediate = immediate ? entry.immediate : 0;
  if (frame.record.kind != RecordKind::send) {
    frame.record.key = entry.remote_key;
    frame.record.address = entry.remote_address;
  }
  frame.record.length = entry.length;
  frame.record.operand = entry.operand;
  frame.record.swap = entry.swap;
  frame.message = entry.message;
  frame.rnr_retry = qp.attributes.rnr_retry;
  return frame;
}

TcpStream& least_loaded(TcpStreams& streams) {
  return **std::min_element(streams.begin(), streams.end(), [](const auto& one, const auto& other) {
    return one->unsent_bytes() < other->unsent_bytes();
  });
}

/// Whether the send may start now; where its own memory is at fault it never will.
bool may_start(QueuePair& qp, SendEntry& entry) {
  thread_local std::vector<iovec> pieces;
  const uint32_t reads = qp.tcp->reads_outstanding;
  if (entry.fenced && reads != 0) return false;
  if (asks(entry) && reads >= std::max<uint32_t>(qp.attributes.max_rd_atomic, 1)) return false;
  if (send_pieces(qp, entry, 0, entry.length, asks(entry) ? IBV_ACCESS_LOCAL_WRITE : 0, pieces)) return true;
  fail(entry, IBV_WC_LOC_PROT_ERR);
  return false;
}

/// Queues the next frame of the send. True once it is queued as a whole.
bool queue_frame(QueuePair& qp, SendEntry& entry) {
  TcpLink& link = *qp.tcp;
  if (entry.phase == SendEntry::Phase::queued) {
    entry.message = ++qp.messages_sent;
    entry.phase = SendEntry::Phase::moving;
  }
  RequestFrame frame = frame_of(qp, entry);
  if (asks(entry)) {
    ++link.reads_outstanding;
    link.outbound[0]->push(frame, 0);
    return true;
  }
  const bool cut = link.outbound.size() > 1 && entry.length >= cut_from_bytes;
  const uint64_t piece =
      cut ? std::clamp(entry.length / link.outbound.size(), least_piece, largest_piece) : entry.length;
  frame.offset = entry.offset;
  frame.record.bytes = static_cast<uint32_t>(std::min(piece, entry.length - entry.offset));
  (cut ? least_loaded(link.outbound) : *link.outbound[0]).push(frame, frame.record.bytes);
  entry.offset += frame.record.bytes;
  if (entry.offset < entry.length) return false;
  entry.phase = SendEntry::Phase::awaiting;
  return true;
}

bool has_room(const TcpLink& link) {
  return std::all_of(link.outbound.begin(), link.outbound.end(),
                     [](const auto& stream) { return stream->outgoing.size() < max_queued; });
}

/// Queues frames of posted sends. True if there were any.
bool queue_frames(QueuePair& qp) {
  bool queued = false;
  while (qp.send_next < qp.send_tail && qp.state.load(std::memory_order_relaxed) == IBV_QPS_RTS &&
         has_room(*qp.tcp)) {
    SendEntry& entry = qp.send_at(qp.send_next);
    if (entry.phase == SendEntry::Phase::failed) break;
    if (entry.phase == SendEntry::Phase::queued && !may_start(qp, entry)) break;
    if (queue_frame(qp, entry)) ++qp.send_next;
    queued = true;
  }
  return queued;
}

SendEntry& entry_of(QueuePair& qp, uint64_t message) {
  return qp.send_at(message - 1);
}

/// What became of the frame at hand.
enum class Taken { whole, blocked, corrupt, failed };

/// Takes the payload of a read's answer into its scatter list.
Taken take_data(QueuePair& qp, TcpStream& stream, bool& moved) {
  thread_local std::vector<iovec> pieces;
  const ResponseFrame& frame = *stream.response;
  SendEntry& entry = entry_of(qp, frame.message);
  for (uint64_t turn = turn_bytes; stream.payload_done < frame.bytes;) {
    const uint64_t left = std::min<uint64_t>(frame.bytes - stream.payload_done, turn);
    if (left == 0) return Taken::blocked;  // others want their turn
    if (!send_pieces(qp, entry, frame.offset + stream.payload_done, left, IBV_ACCESS_LOCAL_WRITE, pieces)) {
      fail(entry, IBV_WC_LOC_PROT_ERR);
      enter_error(qp, IBV_WC_LOC_PROT_ERR);
      return Taken::failed;
    }
    uint64_t bytes = 0;
    const Flow flow = stream.read_into(pieces, &bytes);
    if (flow == Flow::closed) stream.close();
    if (flow != Flow::moved) return Taken::blocked;
    stream.payload_done += bytes;
    turn -= bytes;
    moved = true;
  }
  entry.offset += frame.bytes;
  return Taken::whole;
}

/// Whether the message is a read or an atomic that is under way and wants this much more.
bool wanted(QueuePair& qp, const ResponseFrame& frame, uint64_t bytes) {
  if (frame.message == 0 || frame.message - 1 < qp.send_head || frame.message - 1 >= qp.send_next)
    return false;
  const SendEntry& entry = entry_of(qp, frame.message);
  return asks(entry) && entry.phase == SendEntry::Phase::moving && bytes <= entry.length - entry.offset &&
         frame.offset <= entry.length && bytes <= entry.length - frame.offset;
}

Taken take_result(QueuePair& qp, const ResponseFrame& frame) {
  thread_local std::vector<iovec> pieces;
  SendEntry& entry = entry_of(qp, frame.message);
  if (!send_pieces(qp, entry, 0, sizeof frame.value, IBV_ACCESS_LOCAL_WRITE, pieces)) {
    enter_error(qp, IBV_WC_LOC_PROT_ERR);
    return Taken::failed;
  }
  scatter(reinterpret_cast<const std::byte*>(&frame.value), pieces);
  entry.offset = entry.length;
  return Taken::whole;
}

/// A read whose answer is complete is done, and makes room for the next.
void note_answered(QueuePair& qp, uint64_t message) {
  SendEntry& entry = entry_of(qp, message);
  if (entry.phase != SendEntry::Phase::moving || entry.offset < entry.length) return;
  entry.phase = SendEntry::Phase::done;
  --qp.tcp->reads_outstanding;
}

/// A read of no bytes has no answer but the acknowledgement.
void note_acknowledged(QueuePair& qp, uint64_t up_to) {
  TcpLink& link = *qp.tcp;
  for (uint64_t message = link.acknowledged + 1; link.reads_outstanding != 0 && message <= up_to; ++message)
    if (message - 1 >= qp.send_head && asks(entry_of(qp, message))) note_answered(qp, message);
  link.acknowledged = up_to;
}

Taken execute(QueuePair& qp, TcpStream& stream, bool& moved) {
  TcpLink& link = *qp.tcp;
  const ResponseFrame frame = *stream.response;
  switch (frame.kind) {
    case ResponseKind::acknowledge:
      if (frame.message > qp.messages_sent || frame.message < link.acknowledged) return Taken::corrupt;
      note_acknowledged(qp, frame.message);
      return Taken::whole;
    case ResponseKind::data: {
      if (stream.payload_done == 0 && !wanted(qp, frame, frame.bytes)) return Taken::corrupt;
      const Taken taken = take_data(qp, stream, moved);
      if (taken == Taken::whole) note_answered(qp, frame.message);
      return taken;
    }
    case ResponseKind::result: {
      if (!wanted(qp, frame, sizeof frame.value) || !is_atomic(entry_of(qp, frame.message).opcode))
        return Taken::corrupt;
      const Taken taken = take_result(qp, frame);
      if (taken == Taken::whole) note_answered(qp, frame.message);
      return taken;
    }
    case ResponseKind::refused:
      if (frame.message == 0 || frame.message > qp.messages_sent) return Taken::corrupt;
      link.refused = frame.message;
      link.refused_status = static_cast<ibv_wc_status>(frame.status);
      return Taken::whole;
    case ResponseKind::goodbye:
      link.outbound_over = true;
      stream.close();
      return Taken::blocked;
    default:
      return Taken::corrupt;
  }
}

/// False where the queue pair has failed, and its link with it.
bool take_from(QueuePair& qp, TcpStream& stream, bool& moved) {
  while (!stream.closed()) {
    if (!stream.response) {
      if (stream.buffered().size() < ResponseFrame::encoded_bytes) {
        const Flow flow = stream.fill();
        if (flow == Flow::closed) {
          stream.close();
          tcp_lose(qp);
        }
        if (flow != Flow::moved) return true;
        continue;
      }
      stream.response = parse_response(stream.buffered().first<ResponseFrame::encoded_bytes>());
      stream.consume(ResponseFrame::encoded_bytes);
      stream.payload_done = 0;
    }
    const Taken taken = stream.response ? execute(qp, stream, moved) : Taken::corrupt;
    if (taken == Taken::corrupt) enter_error(qp, IBV_WC_BAD_RESP_ERR);
    if (taken == Taken::corrupt || taken == Taken::failed) return false;
    if (taken == Taken::blocked) {
      if (stream.closed() && !qp.tcp->outbound_over) tcp_lose(qp);
      return true;
    }
    stream.response.reset();
    moved = true;
  }
  return true;
}

}  // namespace

bool tcp_take_responses(QueuePair& qp) {
  TcpLink& link = *qp.tcp;
  bool moved = false;
  const bool idle = qp.send_head == qp.send_next;
  for (size_t i = 0; i < link.outbound.size(); ++i) {
    TcpStream& stream = *link.outbound[i];
    if (stream.quiet() && !stream.response) continue;
    if (idle && !stream.roused() && ++link.idle_looks % looks_between != 0) continue;
    if (!take_from(qp, stream, moved)) return true;
  }
  if (link.outbound_over && !link.outbound.empty()) tcp_leave_outbound(qp);
  return moved;
}

bool tcp_send_requests(QueuePair& qp, uint64_t budget) {
  TcpLink& link = *qp.tcp;
  const TcpStream::Resolve resolve = [&qp](const Outgoing& frame, uint64_t offset, uint64_t bytes,
                                           std::vector<iovec>& pieces) {
    return send_pieces(qp, entry_of(qp, frame.message), frame.place + offset, bytes, 0, pieces);
  };
  bool moved = false;
  while (budget > 0) {
    const bool queued = queue_frames(qp);
    moved |= queued;
    bool flowing = false;
    for (const auto& stream : link.outbound) {
      const uint64_t before = stream->unsent_bytes();
      if (before == 0 || stream->closed()) continue;
      const Flow flow = stream->flush(budget, resolve);
      if (flow == Flow::invalid) fail(entry_of(qp, stream->outgoing.front().message), IBV_WC_LOC_PROT_ERR);
      const uint64_t sent = before - stream->unsent_bytes();
      moved |= sent != 0;
      flowing |= flow == Flow::moved;
      budget -= std::min(budget, sent);
    }
    if (!queued || !flowing) break;
  }
  return moved;
}

bool tcp_progress_requests(QueuePair& qp, Effort effort) {
  const int state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTS && state != IBV_QPS_SQD) return tcp_fail_if_lost(qp);
  TcpLink& link = *qp.tcp;
  // Who posts goes on to poll, unless there is no room to post.
  const bool full = qp.send_tail - qp.send_head == qp.sends.size();
  bool moved = (effort == Effort::full || full) && tcp_take_responses(qp);
  if (!qp.tcp || qp.state.load(std::memory_order_relaxed) != state) return true;
  if (qp.send_head != qp.send_tail) moved |= reap(qp);
  if (!link.reachable()) {
    check_unreachable(qp);
    return tcp_fail_if_lost(qp) || moved;
  }
  qp.unreachable_since_ns = 0;
  if (qp.send_head != qp.send_tail) {
    moved |= tcp_send_requests(qp, effort == Effort::brief ? brief_send_bytes : turn_bytes);
    moved |= reap(qp);
  }
  return tcp_fail_if_lost(qp) || moved;
}

}  // namespace rdmatx::soft
