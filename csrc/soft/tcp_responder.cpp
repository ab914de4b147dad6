// Requests of a peer that is reached over TCP, carried out; see tcp_link.hpp.

#include <algorithm>

#include "soft/instance.hpp"
#include "soft/responder.hpp"
#include "soft/send_queue.hpp"
#include "soft/tcp_link.hpp"

namespace rdmatx::soft {
namespace {

/// The answer to a read is cut into pieces of these sizes, over the streams.
constexpr uint64_t least_piece = 256 * 1024, largest_piece = 1024 * 1024;

/// The peer broke the rules of the wire: its request cannot be carried out, and nothing after it.
Outcome break_off(QueuePair& qp) {
  return refuse(qp, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_FATAL);
}

/// Takes a receive for the message. Where none is posted in time the requester hears of it, and its
/// connection ends; this queue pair is none the worse for it.
Outcome want_receive(QueuePair& qp, const RequestFrame& frame) {
  TcpLink& link = *qp.tcp;
  if (receive_is_posted(qp) && take_receive(qp)) {
    link.not_ready_since_ns = 0;
    return Outcome::consumed;
  }
  const uint64_t now = now_ns();
  if (link.not_ready_since_ns == 0) link.not_ready_since_ns = now;
  if (frame.rnr_retry == 7) return Outcome::waits;  // for ever (ibv_modify_qp(3))
  if (now - link.not_ready_since_ns < uint64_t{qp.rnr_timer_ns} * frame.rnr_retry) return Outcome::waits;
  tcp_refuse(qp, IBV_WC_RNR_RETRY_EXC_ERR);
  tcp_leave_inbound(qp);
  return Outcome::refused;
}

/// What has to be so before anything of a message is carried out.
Outcome begin(QueuePair& qp, const RequestFrame& frame) {
  TcpLink& link = *qp.tcp;
  const Record& record = frame.record;
  Outcome outcome = Outcome::consumed;
  if (record.kind == RecordKind::send)
    outcome = want_receive(qp, frame);
  else if (record.kind == RecordKind::write && record.length > 0)
    outcome = check_write(qp, record.key, record.address, record.length);
  if (outcome != Outcome::consumed) return outcome;
  if (record.kind == RecordKind::send && record.length > qp.current_capacity) {
    thread_local std::vector<iovec> none;
    return send_target(qp, 0, record.length, none);  // too long: refused
  }
  link.begun = true;
  link.current = record;
  link.arrived = 0;
  return Outcome::consumed;
}

/// Where the rest of the frame's payload goes, checked anew each time: a region may go away meanwhile.
Outcome find_target(QueuePair& qp, const TcpStream& stream, uint64_t bytes, std::vector<iovec>& pieces) {
  const RequestFrame& frame = *stream.request;
  const uint64_t offset = frame.offset + stream.payload_done;
  if (frame.record.kind == RecordKind::send) return send_target(qp, offset, bytes, pieces);
  const uint64_t address = frame.record.address + offset;
  pieces.assign(1, {region_memory(qp, frame.record.key, address), bytes});
  return check_write(qp, frame.record.key, address, bytes);
}

Outcome take_payload(QueuePair& qp, TcpStream& stream, uint64_t& turn) {
  thread_local std::vector<iovec> pieces;
  const uint64_t size = stream.request->record.bytes;
  while (stream.payload_done < size) {
    const uint64_t left = std::min(size - stream.payload_done, turn);
    if (left == 0) return Outcome::waits;  // others want their turn
    if (Outcome outcome = find_target(qp, stream, left, pieces); outcome != Outcome::consumed) return outcome;
    uint64_t bytes = 0;
    const Flow flow = stream.read_into(pieces, &bytes);
    if (flow == Flow::closed) stream.close();
    if (flow != Flow::moved) return Outcome::waits;
    stream.payload_done += bytes;
    turn -= bytes;
  }
  return Outcome::consumed;
}

/// A piece of a SEND or WRITE: its payload, and with the last one the message is complete.
Outcome take_piece(QueuePair& qp, TcpStream& stream, uint64_t& turn) {
  TcpLink& link = *qp.tcp;
  const RequestFrame& frame = *stream.request;
  const Record& record = frame.record;
  if (record.bytes > link.current.length - link.arrived) return break_off(qp);
  if (Outcome outcome = take_payload(qp, stream, turn); outcome != Outcome::consumed) return outcome;
  const bool whole = link.arrived + record.bytes == link.current.length;
  const bool write_notifies = record.kind == RecordKind::write && (record.flags & record_immediate);
  if (whole && write_notifies)
    if (Outcome outcome = want_receive(qp, frame); outcome != Outcome::consumed) {
      if (outcome == Outcome::waits) stream.waits = true;
      return outcome;
    }
  link.arrived += record.bytes;
  if (!whole) return Outcome::consumed;
  link.begun = false;
  if (record.kind == RecordKind::send)
    finish_receive(qp, record, IBV_WC_RECV, record.length);
  else if (write_notifies)
    finish_receive(qp, record, IBV_WC_RECV_RDMA_WITH_IMM, record.length);
  acknowledge(qp);
  return Outcome::consumed;
}

TcpStream& least_loaded(TcpStreams& streams) {
  return **std::min_element(streams.begin(), streams.end(), [](const auto& one, const auto& other) {
    return one->unsent_bytes() < other->unsent_bytes();
  });
}

bool all_sent(const TcpStreams& streams) {
  return std::all_of(streams.begin(), streams.end(),
                     [](const auto& stream) { return stream->outgoing.empty(); });
}

/// Hands what there is to tell to the sockets: acknowledgements, and the answer to a read.
bool answer(QueuePair& qp) {
  TcpLink& link = *qp.tcp;
  if (link.inbound.empty()) return false;
  if (qp.messages_received > link.told) {
    ResponseFrame frame;
    frame.message = link.told = qp.messages_received;
    link.inbound[0]->push(frame);
  }
  // Where the region goes away in the middle of a frame, the frame is filled up from here.
  static constexpr size_t filler_bytes = 64 * 1024;
  static const auto filler = std::make_unique<std::byte[]>(filler_bytes);
  const TcpStream::Resolve resolve = [&](const Outgoing& frame, uint64_t offset, uint64_t bytes,
                                         std::vector<iovec>& pieces) {
    pieces.clear();
    if (!link.answer_invalid &&
        peer_may_access(qp, frame.key, frame.place + offset, bytes, IBV_ACCESS_REMOTE_READ)) {
      pieces.push_back({region_memory(qp, frame.key, frame.place + offset), bytes});
      return true;
    }
    link.answer_invalid = true;
    if (frame.sent == 0) return false;
    for (uint64_t left = bytes; left > 0; left -= pieces.back().iov_len)
      pieces.push_back({filler.get(), std::min<uint64_t>(left, filler_bytes)});
    return true;
  };
  bool moved = false;
  for (const auto& stream : link.inbound) {
    if (stream->outgoing.empty() || stream->closed()) continue;
    const uint64_t before = stream->unsent_bytes();
    if (stream->flush(turn_bytes, resolve) == Flow::closed) stream->outgoing.clear();  // reading tells why
    moved |= stream->unsent_bytes() != before;
  }
  return moved;
}

/// Answers a read. The request stays at the front until its answer is on its way as a whole.
Outcome take_read(QueuePair& qp, TcpStream& stream) {
  TcpLink& link = *qp.tcp;
  const RequestFrame& frame = *stream.request;
  if (!stream.waits) {
    if (Outcome outcome = check_read(qp, frame.record); outcome != Outcome::consumed) return outcome;
    const uint64_t length = frame.record.length;
    const uint64_t piece = std::clamp(length / link.inbound.size(), least_piece, largest_piece);
    for (uint64_t offset = 0; offset < length; offset += piece) {
      ResponseFrame data;
      data.kind = ResponseKind::data;
      data.message = frame.message;
      data.offset = offset;
      data.bytes = static_cast<uint32_t>(std::min(piece, length - offset));
      least_loaded(link.inbound).push(data, frame.record.address + offset, frame.record.key);
    }
  }
  stream.waits = true;
  answer(qp);
  if (link.answer_invalid) {
    const auto half_sent = [](const auto& each) {
      return !each->outgoing.empty() && each->outgoing.front().sent != 0;
    };
    if (std::any_of(link.inbound.begin(), link.inbound.end(), half_sent)) return Outcome::waits;
    return refuse(qp, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
  if (!all_sent(link.inbound)) return Outcome::waits;
  link.begun = false;
  acknowledge(qp);
  return Outcome::consumed;
}

Outcome take_atomic(QueuePair& qp, const RequestFrame& frame) {
  ResponseFrame result;
  if (Outcome outcome = execute_atomic(qp, frame.record, &result.value); outcome != Outcome::consumed)
    return outcome;
  result.kind = ResponseKind::result;
  result.message = frame.message;
  qp.tcp->inbound[0]->push(result);
  qp.tcp->begun = false;
  acknowledge(qp);
  return Outcome::consumed;
}

/// Carries out the frame at hand, as far as it has come.
Outcome execute(QueuePair& qp, TcpStream& stream, uint64_t& turn) {
  TcpLink& link = *qp.tcp;
  const RequestFrame& frame = *stream.request;
  const uint64_t expected = qp.messages_received + 1;
  if (frame.message < expected) return break_off(qp);
  if (frame.message > expected) {  // pieces of earlier ones are on their way on other streams
    stream.waits = link.inbound.size() > 1;
    return stream.waits ? Outcome::waits : break_off(qp);
  }
  if (!link.begun) {
    const Outcome outcome = begin(qp, frame);
    if (outcome == Outcome::refused) return outcome;
    stream.waits = outcome == Outcome::waits;
    if (outcome == Outcome::waits) return outcome;
  } else if (frame.record.kind != link.current.kind || frame.record.length != link.current.length) {
    return break_off(qp);
  }
  switch (frame.record.kind) {
    case RecordKind::read:
      return take_read(qp, stream);
    case RecordKind::fetch_add:
    case RecordKind::compare_swap:
      return take_atomic(qp, frame);
    default:
      return take_piece(qp, stream, turn);
  }
}

/// The next frame's header. False where there is none now.
bool take_header(QueuePair& qp, TcpStream& stream, bool* corrupt) {
  while (stream.buffered().size() < RequestFrame::encoded_bytes) {
    const Flow flow = stream.fill();
    if (flow == Flow::closed) {
      stream.close();
      tcp_lose(qp);
    }
    if (flow != Flow::moved) return false;
  }
  stream.request = parse_request(stream.buffered().first<RequestFrame::encoded_bytes>());
  stream.consume(RequestFrame::encoded_bytes);
  stream.payload_done = 0;
  stream.waits = false;
  *corrupt = !stream.request;
  return true;
}

/// A requester that leaves says so on each of its streams.
void take_goodbye(QueuePair& qp, TcpStream& stream) {
  TcpLink& link = *qp.tcp;
  stream.request.reset();
  stream.left = stream.waits = true;  // nothing more comes
  link.inbound_over =
      std::all_of(link.inbound.begin(), link.inbound.end(), [](const auto& each) { return each->left; });
}

enum class Served { nothing, some, refused };

Served serve(QueuePair& qp, TcpStream& stream, uint64_t& turn) {
  Served served = Served::nothing;
  while (!stream.closed() && !stream.left) {
    bool corrupt = false;
    if (!stream.request && !take_header(qp, stream, &corrupt)) return served;
    if (!corrupt && stream.request->goodbye) {
      take_goodbye(qp, stream);
      return Served::some;
    }
    qp.tcp->inbound_used = true;
    const uint64_t before = stream.payload_done;
    const Outcome outcome = corrupt ? break_off(qp) : execute(qp, stream, turn);
    if (outcome == Outcome::refused) return Served::refused;
    if (outcome == Outcome::waits) {
      // A requester that was cut off in the middle of a message may still be there, as its responder's half
      // then tells.
      if (stream.closed() && !qp.tcp->reachable()) tcp_lose(qp);
      return stream.payload_done != before ? Served::some : served;
    }
    stream.request.reset();
    stream.waits = false;
    served = Served::some;
  }
  return served;
}

}  // namespace

void tcp_refuse(QueuePair& qp, ibv_wc_status status) {
  TcpLink& link = *qp.tcp;
  if (link.inbound.empty()) return;
  ResponseFrame known;
  known.message = link.told = qp.messages_received;
  link.inbound[0]->push(known);
  ResponseFrame refusal;
  refusal.kind = ResponseKind::refused;
  refusal.status = static_cast<uint8_t>(status);
  refusal.message = qp.messages_received + 1;
  link.inbound[0]->push(refusal);
}

bool tcp_serve(QueuePair& qp) {
  TcpLink& link = *qp.tcp;
  const int state = qp.state.load(std::memory_order_relaxed);
  if (link.inbound.empty() || (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD))
    return false;
  bool moved = false;
  uint64_t turn = turn_bytes;
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < link.inbound.size(); ++i) {
      if (link.inbound[i]->quiet() && !link.inbound[i]->request) continue;
      const Served served = serve(qp, *link.inbound[i], turn);
      if (served == Served::refused) return true;
      again |= served == Served::some;
    }
    moved |= again;
    again &= link.inbound.size() > 1 && turn > 0;  // one stream may wait for what has just come on another
  }
  moved |= answer(qp);
  if (link.inbound_over) tcp_leave_inbound(qp);
  return moved;
}

}  // namespace rdmatx::soft
