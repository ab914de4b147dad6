#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/peer.hpp"
#include "soft/responder.hpp"
#include "soft/tcp_link.hpp"

namespace rdmatx::soft {

namespace {

void complete_receive(QueuePair& qp, uint64_t id, ibv_wc_status status, ibv_wc_opcode opcode = IBV_WC_RECV,
                      uint64_t bytes = 0, const Record* record = nullptr) {
  ibv_wc completion{};
  completion.wr_id = id;
  completion.status = status;
  completion.opcode = opcode;
  completion.qp_num = qp.base.qp_num;
  completion.src_qp = qp.attributes.dest_qp_num;
  completion.byte_len = static_cast<uint32_t>(bytes);
  if (record && (record->flags & record_immediate)) {
    completion.wc_flags = IBV_WC_WITH_IMM;
    completion.imm_data = record->immediate;
  }
  complete(qp.recv_cq, completion, record && (record->flags & record_solicited));
}

}  // namespace

bool take_receive(QueuePair& qp) {
  if (qp.srq) {
    bool reached_limit = false;
    {
      std::lock_guard lock(qp.srq->mutex);
      if (qp.srq->ring.size() == 0) return false;
      qp.current_receive = qp.srq->ring.pop(qp.current_sges);
      reached_limit = qp.srq->limit != 0 && qp.srq->ring.size() < qp.srq->limit;
      if (reached_limit) qp.srq->limit = 0;  // told once (ibv_modify_srq(3))
    }
    if (reached_limit) raise_async_event(qp.context, IBV_EVENT_SRQ_LIMIT_REACHED, &qp.srq->base);
  } else {
    if (qp.receives.size() == 0) return false;
    qp.current_receive = qp.receives.pop(qp.current_sges);
  }
  qp.current_offset = 0;
  qp.current_capacity = 0;
  for (const ibv_sge& sge : qp.current_sges) qp.current_capacity += sge.length;
  return true;
}

bool receive_is_posted(QueuePair& qp) {
  if (!qp.srq) return qp.receives.size() != 0;
  std::lock_guard lock(qp.srq->mutex);
  return qp.srq->ring.size() != 0;
}

void acknowledge(QueuePair& qp) {
  ++qp.messages_received;  // told with what else there is to tell
}

namespace {

/// Every word costs both sides a cache line: of a burst of messages only every so many is told at once.
constexpr uint64_t most_untold = 16;

void tell_acknowledged(QueuePair& qp) {
  if (qp.messages_told == qp.messages_received) return;
  qp.messages_told = qp.messages_received;
  qp.inbound->state().acknowledged.store(qp.messages_told, std::memory_order_release);
}

}  // namespace

Outcome refuse(QueuePair& qp, ibv_wc_status for_requester, ibv_event_type event) {
  if (qp.tcp) {
    tcp_refuse(qp, for_requester);
    raise_async_event(qp.context, event, &qp.base);
    enter_error(qp, IBV_WC_WR_FLUSH_ERR);
    return Outcome::refused;
  }
  tell_acknowledged(qp);
  ChannelState& channel = qp.inbound->state();
  channel.refused_status.store(for_requester, std::memory_order_relaxed);
  channel.refused.store(qp.messages_received + 1, std::memory_order_release);
  raise_async_event(qp.context, event, &qp.base);
  enter_error(qp, IBV_WC_WR_FLUSH_ERR);
  wake_requester(qp);
  return Outcome::refused;
}

namespace {

Outcome refuse_receive(QueuePair& qp, ibv_wc_status local, ibv_wc_status for_requester) {
  complete_receive(qp, *qp.current_receive, local);
  qp.current_receive.reset();
  return refuse(qp, for_requester, IBV_EVENT_QP_REQ_ERR);
}

}  // namespace

Outcome send_target(QueuePair& qp, uint64_t offset, uint64_t bytes, std::vector<iovec>& pieces) {
  if (offset > qp.current_capacity || bytes > qp.current_capacity - offset)
    return refuse_receive(qp, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
  if (!local_pieces(qp, qp.current_sges.data(), static_cast<uint32_t>(qp.current_sges.size()), offset, bytes,
                    IBV_ACCESS_LOCAL_WRITE, pieces))
    return refuse_receive(qp, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
  return Outcome::consumed;
}

Outcome check_write(QueuePair& qp, uint32_t key, uint64_t address, uint64_t bytes) {
  if (peer_may_access(qp, key, address, bytes, IBV_ACCESS_REMOTE_WRITE)) return Outcome::consumed;
  return refuse(qp, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

Outcome check_read(QueuePair& qp, const Record& record) {
  if (peer_may_access(qp, record.key, record.address, record.length, IBV_ACCESS_REMOTE_READ))
    return Outcome::consumed;
  return refuse(qp, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

Outcome execute_atomic(QueuePair& qp, const Record& record, uint64_t* before) {
  if (record.address % 8 != 0) return refuse(qp, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  if (!peer_may_access(qp, record.key, record.address, 8, IBV_ACCESS_REMOTE_ATOMIC))
    return refuse(qp, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  std::atomic_ref<uint64_t> target(
      *reinterpret_cast<uint64_t*>(region_memory(qp, record.key, record.address)));
  *before = record.operand;
  if (record.kind == RecordKind::fetch_add)
    *before = target.fetch_add(record.operand);
  else
    target.compare_exchange_strong(*before, record.swap);
  return Outcome::consumed;
}

void finish_receive(QueuePair& qp, const Record& record, ibv_wc_opcode opcode, uint64_t bytes) {
  complete_receive(qp, *qp.current_receive, IBV_WC_SUCCESS, opcode, bytes, &record);
  qp.current_receive.reset();
}

namespace {

/// Takes a receive for the message; where none is posted the requester is told that it must wait.
Outcome want_receive(QueuePair& qp) {
  ChannelState& channel = qp.inbound->state();
  const uint64_t message = qp.messages_received + 1;
  uint64_t announced = channel.receiver_not_ready.load(std::memory_order_acquire);
  if (announced == rnr_cancelled) return Outcome::waits;  // the requester gave up: nothing more comes
  if (!receive_is_posted(qp)) {
    if (announced != message && channel.receiver_not_ready.compare_exchange_strong(announced, message))
      wake_requester(qp);
    return Outcome::waits;
  }
  if (announced == message && !channel.receiver_not_ready.compare_exchange_strong(announced, 0))
    return Outcome::waits;  // the requester gave up just now: the message was never sent
  return take_receive(qp) ? Outcome::consumed : Outcome::waits;
}

Outcome handle_send(QueuePair& qp, const Record& record, const std::byte* payload) {
  std::vector<iovec>& pieces = qp.pieces;
  if (!qp.current_receive)
    if (Outcome outcome = want_receive(qp); outcome != Outcome::consumed) return outcome;
  if (Outcome outcome = send_target(qp, qp.current_offset, record.bytes, pieces);
      outcome != Outcome::consumed)
    return outcome;
  scatter(payload, pieces);
  qp.current_offset += record.bytes;
  if (record.flags & record_last) {
    finish_receive(qp, record, IBV_WC_RECV, qp.current_offset);
    acknowledge(qp);
  }
  return Outcome::consumed;
}

Outcome handle_write(QueuePair& qp, const Record& record, const std::byte* payload) {
  if (Outcome outcome = check_write(qp, record.key, record.address, record.bytes);
      outcome != Outcome::consumed)
    return outcome;
  std::memcpy(region_memory(qp, record.key, record.address), payload, record.bytes);
  return Outcome::consumed;
}

Outcome handle_write_last(QueuePair& qp, const Record& record) {
  if (record.flags & record_immediate) {
    if (Outcome outcome = want_receive(qp); outcome != Outcome::consumed) return outcome;
    finish_receive(qp, record, IBV_WC_RECV_RDMA_WITH_IMM, record.length);
  }
  acknowledge(qp);
  return Outcome::consumed;
}

Outcome handle_read(QueuePair& qp, const Record& record) {
  if (Outcome outcome = check_read(qp, record); outcome != Outcome::consumed) return outcome;
  while (qp.response_offset < record.length) {
    const uint64_t bytes = std::min<uint64_t>(record.length - qp.response_offset, Ring::max_payload);
    Record* response = qp.responses_out.reserve(bytes);
    if (!response) return Outcome::waits;
    response->kind = RecordKind::response;
    std::memcpy(response + 1, region_memory(qp, record.key, record.address + qp.response_offset), bytes);
    qp.response_offset += bytes;
    qp.responses_out.commit();
    wake_requester(qp);
  }
  qp.response_offset = 0;
  acknowledge(qp);
  return Outcome::consumed;
}

Outcome handle_atomic(QueuePair& qp, const Record& record) {
  Record* response = qp.responses_out.reserve(8);
  if (!response) return Outcome::waits;
  uint64_t before = 0;
  if (Outcome outcome = execute_atomic(qp, record, &before); outcome != Outcome::consumed) return outcome;
  response->kind = RecordKind::response;
  std::memcpy(response + 1, &before, 8);
  qp.responses_out.commit();
  acknowledge(qp);
  return Outcome::consumed;
}

Outcome handle(QueuePair& qp, const Record& record, const std::byte* payload) {
  switch (record.kind) {
    case RecordKind::send:
      return handle_send(qp, record, payload);
    case RecordKind::write:
      return handle_write(qp, record, payload);
    case RecordKind::write_last:
      return handle_write_last(qp, record);
    case RecordKind::read:
      return handle_read(qp, record);
    case RecordKind::fetch_add:
    case RecordKind::compare_swap:
      return handle_atomic(qp, record);
    case RecordKind::fault:
      return refuse(qp, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    default:
      return refuse(qp, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  }
}

}  // namespace

bool peer_may_access(const QueuePair& qp, uint32_t key, uint64_t address, uint64_t length, uint32_t access) {
  if ((qp.attributes.qp_access_flags & access) != access) return false;
  return length == 0 ||
         qp.context->instance->memory().find(key, address, length, qp.domain->number, access) != nullptr;
}

bool progress_responses(QueuePair& qp) {
  if (qp.tcp) return tcp_serve(qp);
  if (!qp.inbound || qp.requests_in.empty()) return false;
  const int state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD) return false;
  bool moved = false, corrupt = false;
  while (const Record* record = qp.requests_in.front(&corrupt)) {
    // A copy of the header: the peer must not change it between the check and the use.
    Record header = *record;
    header.bytes = qp.requests_in.front_bytes();
    const Outcome outcome = handle(qp, header, reinterpret_cast<const std::byte*>(record + 1));
    if (outcome == Outcome::refused) return true;
    if (outcome == Outcome::waits) break;
    qp.requests_in.pop();
    moved = true;
    if (qp.messages_received - qp.messages_told >= most_untold) {
      tell_acknowledged(qp);
      wake_requester(qp);
    }
  }
  if (corrupt) {
    refuse(qp, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_FATAL);
    return true;
  }
  if (moved) {  // messages are executed, or there is room in the ring again
    tell_acknowledged(qp);
    wake_requester(qp);
  }
  return moved;
}

void enter_error(QueuePair& qp, ibv_wc_status first) {
  qp.state.store(IBV_QPS_ERR, std::memory_order_relaxed);
  __atomic_store_n(&qp.base.state, IBV_QPS_ERR, __ATOMIC_RELAXED);  // read without the lock
  if (qp.inbound) qp.inbound->state().open.store(0, std::memory_order_release);
  if (qp.tcp) tcp_leave(qp);
  close_shared_write(qp);
  flush_sends(qp, first);
  if (qp.current_receive) complete_receive(qp, *qp.current_receive, IBV_WC_WR_FLUSH_ERR);
  qp.current_receive.reset();
  if (qp.srq) {
    raise_async_event(qp.context, IBV_EVENT_QP_LAST_WQE_REACHED, &qp.base);
    return;
  }
  while (qp.receives.size() != 0) complete_receive(qp, qp.receives.pop(qp.current_sges), IBV_WC_WR_FLUSH_ERR);
}

void fail_for_lost_peer(QueuePair& qp) {
  const int state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD) return;
  drive(qp);
  if (qp.state.load(std::memory_order_relaxed) == IBV_QPS_ERR) return;
  raise_async_event(qp.context, IBV_EVENT_QP_FATAL, &qp.base);
  enter_error(qp, IBV_WC_RETRY_EXC_ERR);
}

namespace {

// The fence orders what was just published before this look, and the sleeper looks again after it set the
// flag by an exchange: whichever comes second sees the other. An exchange here too would take the flag's
// cache line from the other side with every message.
void ring_if_asleep(QueuePair& qp, std::atomic<uint32_t>& asleep) {
#ifndef __SANITIZE_THREAD__  // which knows no fences
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (asleep.load(std::memory_order_relaxed) == 0) return;
#endif
  if (asleep.exchange(0) != 0) qp.peer->ring_doorbell();
}

}  // namespace

void wake_responder(QueuePair& qp) {
  ring_if_asleep(qp, qp.outbound->state().responder_asleep);
}

void wake_requester(QueuePair& qp) {
  ring_if_asleep(qp, qp.inbound->state().requester_asleep);
}

}  // namespace rdmatx::soft
