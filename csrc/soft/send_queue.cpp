// The send queue: completing, failing and flushing; see send_queue.hpp.

#include "soft/send_queue.hpp"

#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/tcp_link.hpp"
#include "soft/tcp_port.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {
namespace {

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

void complete_send(QueuePair& qp, const SendEntry& entry, ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS && !entry.signaled) return;
  ibv_wc completion{};
  completion.wr_id = entry.id;
  completion.status = status;
  completion.opcode = completion_opcode(entry.opcode);
  completion.qp_num = qp.base.qp_num;
  if (status == IBV_WC_SUCCESS && (entry.opcode == IBV_WR_RDMA_READ || is_atomic(entry.opcode)))
    completion.byte_len = static_cast<uint32_t>(entry.length);
  complete(qp.send_cq, completion, false);
}

/// What the responder has told so far.
struct Told {
  uint64_t acknowledged = 0;
  uint64_t refused = 0;  // 0 for none
  ibv_wc_status status = IBV_WC_SUCCESS;
};

Told told_by_responder(const QueuePair& qp) {
  if (qp.tcp) return {qp.tcp->acknowledged, qp.tcp->refused, qp.tcp->refused_status};
  if (!qp.outbound) return {};
  const ChannelState& channel = qp.outbound->state();
  Told told;
  told.acknowledged = channel.acknowledged.load(std::memory_order_acquire);
  told.refused = channel.refused.load(std::memory_order_acquire);
  told.status = static_cast<ibv_wc_status>(channel.refused_status.load(std::memory_order_relaxed));
  return told;
}

bool reachable(const QueuePair& qp) {
  if (qp.tcp) return qp.tcp->reachable();
  return qp.outbound && qp.outbound->state().open.load() != 0;
}

}  // namespace

Step fail(SendEntry& entry, ibv_wc_status status) {
  entry.phase = SendEntry::Phase::failed;
  entry.status = status;
  return Step::blocked;  // nothing behind it may start
}

bool reap(QueuePair& qp) {
  const uint64_t start = qp.send_head;
  const Told told = told_by_responder(qp);
  for (; qp.send_head < qp.send_tail; ++qp.send_head) {
    const SendEntry& entry = qp.send_at(qp.send_head);
    using enum SendEntry::Phase;
    if (entry.phase == failed) {
      enter_error(qp, entry.status);
      return true;
    }
    if (entry.phase != done && !(entry.phase == awaiting && entry.message <= told.acknowledged)) {
      if (entry.message && told.refused == entry.message) {
        enter_error(qp, told.status);
        return true;
      }
      break;
    }
    complete_send(qp, entry, IBV_WC_SUCCESS);
    if (qp.send_next == qp.send_head) ++qp.send_next;
  }
  return qp.send_head != start;
}

void check_unreachable(QueuePair& qp) {
  if (qp.send_head == qp.send_tail || reachable(qp)) {
    qp.unreachable_since_ns = 0;
    return;
  }
  const uint64_t now = now_ns();
  if (qp.unreachable_since_ns == 0) qp.unreachable_since_ns = now;
  uint64_t budget = (uint64_t{4096} << qp.attributes.timeout) * (qp.attributes.retry_cnt + 1u);
  uint64_t since = qp.unreachable_since_ns;
  if (qp.attributes.timeout == 0) {  // waits for ever (ibv_modify_qp(3)), but not for what is not there
    if (!qp.tcp || qp.tcp->no_way_since_ns == 0) return;
    budget = qp.context->instance->wire().tcp()->peer_timeout_ns();
    since = std::max(since, qp.tcp->no_way_since_ns);
  }
  if (now > since && now - since >= budget) enter_error(qp, IBV_WC_RETRY_EXC_ERR);
}

bool timer_runs(const QueuePair& qp) {
  if (qp.tcp && tcp_timer_runs(qp)) return true;
  return qp.send_head != qp.send_tail && (qp.unreachable_since_ns != 0 || qp.not_ready_since_ns != 0);
}

void flush_sends(QueuePair& qp, ibv_wc_status first) {
  for (; qp.send_head < qp.send_tail; ++qp.send_head) {
    complete_send(qp, qp.send_at(qp.send_head), first);
    first = IBV_WC_WR_FLUSH_ERR;
  }
  qp.send_next = qp.send_tail;
}

}  // namespace rdmatx::soft
