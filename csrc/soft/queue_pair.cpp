#include <algorithm>
#include <cerrno>
#include <exception>

#include "base/log.hpp"
#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/objects.hpp"
#include "soft/peer.hpp"
#include "soft/tcp_link.hpp"
#include "soft/tcp_port.hpp"
#include "soft/verbs.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {
namespace {

/// What a transition of a reliable-connected queue pair needs and takes (ibv_modify_qp(3), IBTA 11.2.5.2).
struct Transition {
  ibv_qp_state from, to;
  int required, optional;
};

constexpr Transition transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

bool transition_allowed(int from, int to, int mask) {
  mask &= ~IBV_QP_STATE;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0;  // from anywhere, with nothing else
  for (const Transition& t : transitions)
    if (t.from == from && t.to == to)
      return (mask & t.required) == t.required && (mask & ~(t.required | t.optional)) == 0;
  return false;
}

bool values_valid(const QueuePair& qp, const ibv_qp_attr& a, int mask) {
  if ((mask & IBV_QP_PKEY_INDEX) && a.pkey_index != 0) return false;
  if ((mask & IBV_QP_PORT) && a.port_num != 1) return false;
  if ((mask & IBV_QP_AV) && (!a.ah_attr.is_global || a.ah_attr.port_num != 1 ||
                             !qp.context->instance->gids().at(a.ah_attr.grh.sgid_index)))
    return false;
  if ((mask & IBV_QP_PATH_MTU) && (a.path_mtu < IBV_MTU_256 || a.path_mtu > IBV_MTU_4096)) return false;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a.max_dest_rd_atomic > Limits::max_outstanding_reads)
    return false;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a.max_rd_atomic > Limits::max_outstanding_reads) return false;
  if ((mask & IBV_QP_MIN_RNR_TIMER) && a.min_rnr_timer > 31) return false;
  if ((mask & IBV_QP_TIMEOUT) && a.timeout > 31) return false;
  if ((mask & IBV_QP_RETRY_CNT) && a.retry_cnt > 7) return false;
  return !((mask & IBV_QP_RNR_RETRY) && a.rnr_retry > 7);
}

/// The codes of min_rnr_timer, in nanoseconds (ibv_modify_qp(3)).
uint32_t rnr_timer_ns(uint8_t code) {
  constexpr uint32_t ten_microseconds[32] = {
      65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
      256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return ten_microseconds[code & 31] * 10'000u;
}

void store_values(QueuePair& qp, const ibv_qp_attr& a, int mask) {
  ibv_qp_attr& own_values = qp.attributes;
  if (mask & IBV_QP_PKEY_INDEX) own_values.pkey_index = a.pkey_index;
  if (mask & IBV_QP_PORT) own_values.port_num = a.port_num;
  if (mask & IBV_QP_ACCESS_FLAGS) own_values.qp_access_flags = a.qp_access_flags;
  if (mask & IBV_QP_AV) own_values.ah_attr = a.ah_attr;
  if (mask & IBV_QP_PATH_MTU) own_values.path_mtu = a.path_mtu;
  if (mask & IBV_QP_DEST_QPN) own_values.dest_qp_num = a.dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) own_values.rq_psn = a.rq_psn;
  if (mask & IBV_QP_SQ_PSN) own_values.sq_psn = a.sq_psn;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) own_values.max_dest_rd_atomic = a.max_dest_rd_atomic;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) own_values.max_rd_atomic = a.max_rd_atomic;
  if (mask & IBV_QP_MIN_RNR_TIMER) own_values.min_rnr_timer = a.min_rnr_timer;
  if (mask & IBV_QP_TIMEOUT) own_values.timeout = a.timeout;
  if (mask & IBV_QP_RETRY_CNT) own_values.retry_cnt = a.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) own_values.rnr_retry = a.rnr_retry;
  qp.rnr_timer_ns = rnr_timer_ns(own_values.min_rnr_timer);
  if (qp.inbound) {
    ChannelState& channel = qp.inbound->state();
    channel.access.store(own_values.qp_access_flags);
    channel.protection_domain.store(qp.domain->number);
    channel.rnr_timer_ns.store(qp.rnr_timer_ns);
  }
}

/// Takes the peer's hands off this side's memory. Waits without the queue pair's lock, which the background
/// thread may want before it can tell that the peer has died.
void shut_inbound(QueuePair& qp) {
  std::shared_ptr<Channel> inbound;
  std::shared_ptr<Peer> peer;
  {
    std::lock_guard lock(qp.mutex);
    close_shared_write(qp);
    inbound = qp.inbound;
    peer = qp.peer;
  }
  if (!inbound) return;
  inbound->state().open.store(0, std::memory_order_seq_cst);
  if (!wait_for_peer(inbound->state(), *peer, 0))
    log(LogLevel::warning,
        "a peer that does not run holds memory of a queue pair; do not reuse that memory yet");
}

void become_reset(QueuePair& qp) {
  if (qp.tcp) tcp_leave(qp);
  qp.tcp.reset();
  qp.inbound.reset();
  qp.outbound.reset();
  qp.peer.reset();
  qp.requests_in = qp.responses_in = qp.requests_out = qp.responses_out = Ring{};
  qp.inbound_granted = false;
  qp.send_head = qp.send_next = qp.send_tail = 0;
  qp.messages_sent = qp.messages_received = qp.messages_told = 0;
  qp.unreachable_since_ns = qp.not_ready_since_ns = 0;
  qp.current_receive.reset();
  qp.response_offset = qp.helped = 0;
  while (qp.receives.size() != 0) qp.receives.pop(qp.current_sges);  // a reset forgets what was posted
  qp.attributes = {};
  ++qp.incarnation;
}

/// Towards ready-to-receive with a peer that IP reaches: this side listens from now on.
int listen_for_peer(QueuePair& qp, const ibv_gid& source, const ibv_gid& destination) {
  if (Instance::names_identity(destination) || is_ipv4(source) != is_ipv4(destination)) return EHOSTUNREACH;
  auto link = std::make_unique<TcpLink>();
  link->source = source;
  link->destination = destination;
  int error = 0;
  link->listener = qp.context->instance->wire().tcp()->listen(source, &error);
  if (!link->listener) return error;
  qp.tcp = std::move(link);
  return 0;
}

/// Towards ready-to-receive: the channel that the peer will send through, and the claim on the peer's own.
int become_ready_to_receive(QueuePair& qp, const ibv_qp_attr& a) {
  Instance& instance = *qp.context->instance;
  const auto source = instance.gids().at(a.ah_attr.grh.sgid_index);
  if (!source) return EINVAL;
  if (!Instance::names_identity(*source)) return listen_for_peer(qp, *source, a.ah_attr.grh.dgid);
  const uint64_t identity = Instance::identity_of(a.ah_attr.grh.dgid);
  if (identity == 0) return EHOSTUNREACH;
  qp.inbound = Channel::create();
  qp.requests_in = qp.inbound->requests();
  qp.responses_out = qp.inbound->responses();
  qp.peer = instance.wire().peer(identity);
  return 0;
}

}  // namespace

ibv_qp* create_qp(ibv_pd* base, ibv_qp_init_attr* wanted) try {
  auto* pd = own<ProtectionDomain>(base);
  Instance& instance = *pd->context->instance;
  if (instance.forked()) return errno = EOWNERDEAD, nullptr;
  ibv_qp_cap& cap = wanted->cap;
  if (wanted->qp_type != IBV_QPT_RC) return errno = EOPNOTSUPP, nullptr;
  if (!wanted->send_cq || !wanted->recv_cq || cap.max_send_wr > Limits::max_work_requests ||
      cap.max_recv_wr > Limits::max_work_requests || cap.max_send_sge > Limits::max_sges ||
      cap.max_recv_sge > Limits::max_sges || cap.max_inline_data > Limits::max_inline)
    return errno = EINVAL, nullptr;
  cap.max_send_wr = std::max(cap.max_send_wr, 1u);
  cap.max_send_sge = std::max(cap.max_send_sge, 1u);
  if (wanted->srq) cap.max_recv_wr = cap.max_recv_sge = 0;
  auto qp = std::make_unique<QueuePair>(wanted->srq ? 0 : std::max(cap.max_recv_wr, 1u),
                                        std::max(cap.max_recv_sge, 1u));
  qp->sends.resize(cap.max_send_wr);
  qp->send_sges.resize(size_t{cap.max_send_wr} * cap.max_send_sge);
  qp->inline_data.resize(size_t{cap.max_send_wr} * cap.max_inline_data);
  qp->context = pd->context;
  qp->domain = pd;
  qp->send_cq = own<CompletionQueue>(wanted->send_cq);
  qp->recv_cq = own<CompletionQueue>(wanted->recv_cq);
  qp->srq = wanted->srq ? own<SharedReceiveQueue>(wanted->srq) : nullptr;
  qp->initial = *wanted;
  ibv_qp& shown = qp->base;
  shown.context = base->context;
  shown.qp_context = wanted->qp_context;
  shown.pd = base;
  shown.send_cq = wanted->send_cq;
  shown.recv_cq = wanted->recv_cq;
  shown.srq = wanted->srq;
  shown.qp_type = IBV_QPT_RC;
  shown.state = IBV_QPS_RESET;
  if (!instance.add(qp.get())) return errno = ENOMEM, nullptr;
  for (CompletionQueue* cq : {qp->send_cq, qp->recv_cq}) {
    std::lock_guard lock(cq->poll_mutex);
    cq->children.fetch_add(1);
    if (std::find(cq->queue_pairs.begin(), cq->queue_pairs.end(), qp.get()) == cq->queue_pairs.end())
      cq->queue_pairs.push_back(qp.get());
  }
  if (qp->srq) qp->srq->children.fetch_add(1);
  pd->children.fetch_add(1);
  return &qp.release()->base;
} catch (const std::bad_alloc&) {
  return errno = ENOMEM, nullptr;
}

int modify_qp(ibv_qp* base, ibv_qp_attr* wanted, int mask) try {
  auto& qp = *own<QueuePair>(base);
  Instance& instance = *qp.context->instance;
  if (instance.forked()) return EOWNERDEAD;
  if ((mask & IBV_QP_STATE) && wanted->qp_state == IBV_QPS_RESET) shut_inbound(qp);
  std::unique_lock lock(qp.mutex);
  const int from = qp.state.load();
  const int to = mask & IBV_QP_STATE ? wanted->qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) && wanted->cur_qp_state != static_cast<ibv_qp_state>(from)) return EINVAL;
  if (!transition_allowed(from, to, mask) || !values_valid(qp, *wanted, mask)) return EINVAL;
  if (to == IBV_QPS_ERR) {
    enter_error(qp, IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  if (to == IBV_QPS_RESET) become_reset(qp);
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
    if (int error = become_ready_to_receive(qp, *wanted)) return error;
  store_values(qp, *wanted, mask);
  qp.state.store(to);
  __atomic_store_n(&qp.base.state, static_cast<ibv_qp_state>(to), __ATOMIC_RELAXED);  // read without the lock
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS && qp.tcp) instance.wire().tcp()->connect(qp);
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR && !qp.tcp) {
    qp.inbound->state().open.store(1, std::memory_order_release);
    instance.wire().claim_channel(qp.peer, qp.attributes.dest_qp_num, base->qp_num, qp.incarnation);
  } else {
    lock.unlock();
    instance.wire().wake();
  }
  return 0;
} catch (const std::exception& error) {
  log(LogLevel::error, error.what());
  return ENOMEM;
}

int query_qp(ibv_qp* base, ibv_qp_attr* attributes, int, ibv_qp_init_attr* initial) {
  auto& qp = *own<QueuePair>(base);
  std::lock_guard lock(qp.mutex);
  *attributes = qp.attributes;
  attributes->qp_state = attributes->cur_qp_state = static_cast<ibv_qp_state>(qp.state.load());
  attributes->cap = qp.initial.cap;
  attributes->sq_draining = qp.state.load() == IBV_QPS_SQD && qp.send_head != qp.send_next;
  if (initial) *initial = qp.initial;
  return 0;
}

int destroy_qp(ibv_qp* base) {
  auto* qp = own<QueuePair>(base);
  Instance& instance = *qp->context->instance;
  if (instance.forked()) return 0;
  shut_inbound(*qp);
  {
    std::lock_guard lock(qp->mutex);
    if (qp->tcp) tcp_leave(*qp);
  }
  instance.remove(qp);
  for (CompletionQueue* cq : {qp->send_cq, qp->recv_cq}) {
    std::lock_guard polling(cq->poll_mutex);
    std::erase(cq->queue_pairs, qp);
    cq->children.fetch_sub(1);
  }
  if (qp->srq) qp->srq->children.fetch_sub(1);
  qp->domain->children.fetch_sub(1);
  delete qp;
  instance.wire().wake();  // its peer may be of no more use
  return 0;
}

}  // namespace rdmatx::soft
