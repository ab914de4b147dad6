#include <algorithm>
#include <cerrno>
#include <cstring>

#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/tcp_link.hpp"
#include "soft/verbs.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {

namespace {

int check_send(const QueuePair& qp, const ibv_send_wr& work, uint64_t length) {
  const ibv_qp_cap& cap = qp.initial.cap;
  const bool reads = work.opcode == IBV_WR_RDMA_READ || is_atomic(work.opcode);
  const bool known = reads || work.opcode == IBV_WR_SEND || work.opcode == IBV_WR_SEND_WITH_IMM ||
                     work.opcode == IBV_WR_RDMA_WRITE || work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (!known || work.num_sge < 0 || static_cast<uint32_t>(work.num_sge) > cap.max_send_sge) return EINVAL;
  if (length > Limits::max_message_bytes) return EINVAL;
  if ((work.send_flags & IBV_SEND_INLINE) && (reads || length > cap.max_inline_data)) return EINVAL;
  if (is_atomic(work.opcode) && (length != 8 || work.wr.atomic.remote_addr % 8 != 0)) return EINVAL;
  return 0;
}

void enqueue(QueuePair& qp, const ibv_send_wr& work, uint64_t length) {
  SendEntry& entry = qp.send_at(qp.send_tail);
  const size_t slot = static_cast<size_t>(&entry - qp.sends.data());
  entry = SendEntry{};
  entry.id = work.wr_id;
  entry.opcode = work.opcode;
  entry.signaled = qp.initial.sq_sig_all || (work.send_flags & IBV_SEND_SIGNALED);
  entry.fenced = work.send_flags & IBV_SEND_FENCE;
  entry.solicited = work.send_flags & IBV_SEND_SOLICITED;
  entry.immediate = work.imm_data;
  entry.length = length;
  if (is_atomic(work.opcode)) {
    entry.remote_address = work.wr.atomic.remote_addr;
    entry.remote_key = work.wr.atomic.rkey;
    entry.operand = work.wr.atomic.compare_add;
    entry.swap = work.wr.atomic.swap;
  } else {
    entry.remote_address = work.wr.rdma.remote_addr;
    entry.remote_key = work.wr.rdma.rkey;
  }
  if (work.send_flags & IBV_SEND_INLINE) {
    entry.inline_data = true;
    std::byte* to = qp.inline_data.data() + slot * qp.initial.cap.max_inline_data;
    for (int i = 0; i < work.num_sge; ++i) {
      std::memcpy(to, reinterpret_cast<const void*>(work.sg_list[i].addr), work.sg_list[i].length);
      to += work.sg_list[i].length;
    }
  } else {
    entry.sge_count = static_cast<uint32_t>(work.num_sge);
    std::copy_n(work.sg_list, work.num_sge, qp.send_sges.data() + slot * qp.initial.cap.max_send_sge);
  }
  ++qp.send_tail;
}

}  // namespace

int post_send(ibv_qp* base, ibv_send_wr* work, ibv_send_wr** bad) {
  auto& qp = *own<QueuePair>(base);
  *bad = work;
  if (qp.context->instance->forked()) return EOWNERDEAD;
  bool leaves_work = false;
  {
    std::lock_guard lock(qp.mutex);
    int state = qp.state.load(std::memory_order_relaxed);
    for (; work; work = work->next) {
      *bad = work;
      if (state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_ERR) return EINVAL;
      uint64_t length = 0;
      for (int i = 0; i < work->num_sge; ++i) length += work->sg_list[i].length;
      if (int error = check_send(qp, *work, length)) return error;
      if (qp.send_tail - qp.send_head == qp.sends.size()) {
        progress_requests(qp, Effort::brief);
        if (qp.send_tail - qp.send_head == qp.sends.size()) return ENOMEM;
      }
      enqueue(qp, *work, length);
      state = qp.state.load(std::memory_order_relaxed);
      if (state == IBV_QPS_ERR) flush_sends(qp, IBV_WC_WR_FLUSH_ERR);
    }
    progress_requests(qp, Effort::brief);
    leaves_work = qp.send_next != qp.send_tail || (qp.tcp && tcp_has_unsent(qp));
  }
  if (leaves_work) qp.context->instance->wire().nudge();
  return 0;
}

}  // namespace rdmatx::soft
