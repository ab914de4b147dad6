#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/objects.hpp"
#include "soft/tcp_link.hpp"
#include "soft/verbs.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {

bool ReceiveRing::push(const ibv_recv_wr& work) noexcept {
  if (count_ == entries_.size()) return false;
  const size_t slot = (first_ + count_) % entries_.size();
  entries_[slot] = {work.wr_id, static_cast<uint32_t>(work.num_sge)};
  std::copy_n(work.sg_list, work.num_sge, sges_.begin() + static_cast<ptrdiff_t>(slot * max_sges_));
  ++count_;
  return true;
}

uint64_t ReceiveRing::pop(std::vector<ibv_sge>& sges) {
  const ReceiveEntry entry = entries_[first_];
  const auto begin = sges_.begin() + static_cast<ptrdiff_t>(first_ * max_sges_);
  sges.assign(begin, begin + entry.sge_count);
  first_ = (first_ + 1) % entries_.size();
  --count_;
  return entry.id;
}

bool ReceiveRing::resize(uint32_t capacity) {
  if (capacity < count_) return false;
  ReceiveRing resized(capacity, max_sges_);
  for (; resized.count_ < count_; ++resized.count_) {
    const size_t slot = (first_ + resized.count_) % entries_.size();
    resized.entries_[resized.count_] = entries_[slot];
    std::copy_n(sges_.begin() + static_cast<ptrdiff_t>(slot * max_sges_), max_sges_,
                resized.sges_.begin() + static_cast<ptrdiff_t>(resized.count_ * max_sges_));
  }
  *this = std::move(resized);
  return true;
}

namespace {

int push_all(ReceiveRing& ring, ibv_recv_wr* work, ibv_recv_wr** bad) {
  for (; work; work = work->next) {
    *bad = work;
    if (work->num_sge < 0 || static_cast<uint32_t>(work->num_sge) > ring.max_sges()) return EINVAL;
    if (!ring.push(*work)) return ENOMEM;
  }
  return 0;
}

}  // namespace

int post_recv(ibv_qp* base, ibv_recv_wr* work, ibv_recv_wr** bad) {
  auto& qp = *own<QueuePair>(base);
  *bad = work;
  if (qp.context->instance->forked()) return EOWNERDEAD;
  std::lock_guard lock(qp.mutex);
  const int state = qp.state.load(std::memory_order_relaxed);
  if (qp.srq || state == IBV_QPS_RESET) return EINVAL;
  const int error = push_all(qp.receives, work, bad);
  if (state == IBV_QPS_ERR)
    enter_error(qp, IBV_WC_WR_FLUSH_ERR);  // flushes what was just posted
  else if (!qp.tcp || qp.tcp->not_ready_since_ns != 0)
    progress_responses(qp);  // a message may be waiting for this receive
  return error;
}

int post_srq_recv(ibv_srq* base, ibv_recv_wr* work, ibv_recv_wr** bad) {
  auto* srq = own<SharedReceiveQueue>(base);
  *bad = work;
  if (srq->context->instance->forked()) return EOWNERDEAD;
  int error;
  {
    std::lock_guard lock(srq->mutex);
    error = push_all(srq->ring, work, bad);
  }
  srq->context->instance->wire().wake();  // a message of any of its queue pairs may be waiting
  return error;
}

ibv_srq* create_srq(ibv_pd* base, ibv_srq_init_attr* attributes) try {
  auto* pd = own<ProtectionDomain>(base);
  if (pd->context->instance->forked()) return errno = EOWNERDEAD, nullptr;
  ibv_srq_attr& wanted = attributes->attr;
  if (wanted.max_wr < 1 || wanted.max_wr > Limits::max_work_requests || wanted.max_sge > Limits::max_sges)
    return errno = EINVAL, nullptr;
  auto* srq = new SharedReceiveQueue(wanted.max_wr, std::max(wanted.max_sge, 1u));
  srq->context = pd->context;
  srq->base.context = base->context;
  srq->base.srq_context = attributes->srq_context;
  srq->base.pd = base;
  pd->children.fetch_add(1);
  return &srq->base;
} catch (const std::bad_alloc&) {
  return errno = ENOMEM, nullptr;
}

int modify_srq(ibv_srq* base, ibv_srq_attr* attributes, int mask) try {
  auto* srq = own<SharedReceiveQueue>(base);
  if (srq->context->instance->forked()) return EOWNERDEAD;
  if (mask & ~(IBV_SRQ_LIMIT | IBV_SRQ_MAX_WR)) return EINVAL;
  std::lock_guard lock(srq->mutex);
  const bool resizes = mask & IBV_SRQ_MAX_WR;
  const uint32_t capacity = resizes ? attributes->max_wr : srq->ring.capacity();
  const uint32_t limit = mask & IBV_SRQ_LIMIT ? attributes->srq_limit : srq->limit;
  if (capacity < 1 || capacity > Limits::max_work_requests || limit > capacity) return EINVAL;
  if (resizes && !srq->ring.resize(capacity)) return EINVAL;
  srq->limit = limit;
  return 0;
} catch (const std::bad_alloc&) {
  return ENOMEM;
}

int query_srq(ibv_srq* base, ibv_srq_attr* attributes) {
  auto* srq = own<SharedReceiveQueue>(base);
  std::lock_guard lock(srq->mutex);
  *attributes = {srq->ring.capacity(), srq->ring.max_sges(), srq->limit};
  return 0;
}

int destroy_srq(ibv_srq* base) {
  auto* srq = own<SharedReceiveQueue>(base);
  if (srq->context->instance->forked()) return 0;
  if (srq->children.load() != 0) return EBUSY;
  own<ProtectionDomain>(base->pd)->children.fetch_sub(1);
  delete srq;
  return 0;
}

}  // namespace rdmatx::soft
