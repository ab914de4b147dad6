#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.hpp"
#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/tcp_link.hpp"
#include "soft/verbs.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {

uint64_t now_ns() noexcept {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

template <class Event>
EventQueue<Event>::EventQueue() : fd_(eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC)) {
  if (!fd_) throw Error("cannot create an event file descriptor: " + describe_errno(errno));
}

template <class Event>
void EventQueue<Event>::push(const Event& event) {
  std::lock_guard lock(mutex_);
  events_.push_back(event);
  eventfd_write(fd_.get(), 1);
}

template <class Event>
std::optional<Event> EventQueue<Event>::pop() {
  eventfd_t one;
  if (eventfd_read(fd_.get(), &one) != 0) return std::nullopt;
  std::lock_guard lock(mutex_);
  if (events_.empty()) {  // removed between the two
    errno = EAGAIN;
    return std::nullopt;
  }
  Event event = events_.front();
  events_.pop_front();
  return event;
}

template <class Event>
template <class Predicate>
void EventQueue<Event>::remove_if(Predicate predicate) {
  std::lock_guard lock(mutex_);
  const size_t removed = std::erase_if(events_, predicate);
  for (size_t i = 0; i < removed; ++i) {
    pollfd readable{fd_.get(), POLLIN, 0};
    eventfd_t one;
    if (poll(&readable, 1, 0) != 1 || eventfd_read(fd_.get(), &one) != 0) break;  // a reader took it first
  }
}

template class EventQueue<ibv_async_event>;
template class EventQueue<CompletionQueue*>;

void raise_async_event(Context* context, ibv_event_type type, void* element) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.qp = static_cast<ibv_qp*>(element);  // a union of pointers
  context->events.push(event);
}

void complete(CompletionQueue* cq, const ibv_wc& completion, bool solicited) {
  bool overran = false;
  {
    std::lock_guard lock(cq->entries_mutex);
    const size_t count = cq->count.load(std::memory_order_relaxed);
    if (count == cq->entries.size()) {
      overran = !cq->overrun;
      cq->overrun = true;
    } else {
      cq->entries[(cq->first + count) % cq->entries.size()] = completion;
      cq->count.store(count + 1, std::memory_order_release);
    }
  }
  if (overran) raise_async_event(cq->context, IBV_EVENT_CQ_ERR, &cq->base);
  // Failed completions count as solicited (ibv_req_notify_cq(3)).
  int armed = cq->armed.load();
  const bool wakes =
      armed == CompletionQueue::armed_any ||
      (armed == CompletionQueue::armed_solicited && (solicited || completion.status != IBV_WC_SUCCESS));
  if (wakes && cq->base.channel && cq->armed.compare_exchange_strong(armed, CompletionQueue::not_armed))
    own<CompletionChannel>(cq->base.channel)->events.push(cq);
}

namespace {

int take(CompletionQueue* cq, int wanted, ibv_wc* completions) {
  if (cq->count.load(std::memory_order_acquire) == 0) return 0;
  std::lock_guard lock(cq->entries_mutex);
  const size_t count = cq->count.load(std::memory_order_relaxed);
  const size_t taken = std::min(count, static_cast<size_t>(wanted));
  for (size_t i = 0; i < taken; ++i) {
    completions[i] = cq->entries[cq->first];
    if (++cq->first == cq->entries.size()) cq->first = 0;
  }
  cq->count.store(count - taken, std::memory_order_release);
  return static_cast<int>(taken);
}

/// That somebody polls is all that matters: of two who count at once, one may be lost.
void count_poll(CompletionQueue& cq) {
  cq.polls.store(cq.polls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

/// Whoever polls needs no doorbell, and peers need not ring it; the background thread takes note, and asks
/// for it again when the polls end.
void stay_awake(QueuePair& qp) {
  bool asked = qp.inbound && qp.inbound->state().responder_asleep.load(std::memory_order_relaxed) != 0 &&
               qp.inbound->state().responder_asleep.exchange(0) != 0;
  asked |= qp.outbound && qp.outbound->state().requester_asleep.load(std::memory_order_relaxed) != 0 &&
           qp.outbound->state().requester_asleep.exchange(0) != 0;
  asked |= qp.tcp && tcp_disarm(qp);
  if (asked) qp.context->instance->wire().nudge();
}

}  // namespace

int poll_cq(ibv_cq* base, int wanted, ibv_wc* completions) {
  auto* cq = own<CompletionQueue>(base);
  if (wanted < 0 || cq->context->instance->forked()) return -1;
  count_poll(*cq);
  if (int taken = take(cq, wanted, completions); taken > 0) return taken;
  if (std::unique_lock polling(cq->poll_mutex, std::try_to_lock); polling)
    for (QueuePair* qp : cq->queue_pairs) {
      std::unique_lock lock(qp->mutex, std::try_to_lock);
      if (!lock) continue;
      stay_awake(*qp);
      drive(*qp);
      help_with_write(*qp);
    }
  // Once more, since that may have taken long: who comes out of a copy polls, and needs no help.
  count_poll(*cq);
  return take(cq, wanted, completions);
}

int req_notify_cq(ibv_cq* base, int solicited_only) {
  auto* cq = own<CompletionQueue>(base);
  if (cq->context->instance->forked()) return EOWNERDEAD;
  const int wanted = solicited_only ? CompletionQueue::armed_solicited : CompletionQueue::armed_any;
  int armed = cq->armed.load();
  while (armed < wanted && !cq->armed.compare_exchange_weak(armed, wanted)) {
  }
  // The caller is about to sleep, and then the background thread drives: it is woken by the peers' doorbells,
  // and at once where something waits that no peer will ring for.
  bool waits = false;
  {
    std::lock_guard polling(cq->poll_mutex);
    for (QueuePair* qp : cq->queue_pairs) {
      std::lock_guard lock(qp->mutex);
      ask_for_doorbell(*qp);
      waits |= timer_runs(*qp) || qp->send_next != qp->send_tail;
    }
  }
  if (waits) cq->context->instance->wire().wake();
  return 0;
}

int get_cq_event(ibv_comp_channel* base, ibv_cq** cq, void** user) {
  auto event = own<CompletionChannel>(base)->events.pop();
  if (!event) return -1;
  *cq = &(*event)->base;
  *user = (*event)->base.cq_context;
  return 0;
}

// destroy_cq takes back the events of its queue, so nothing has to wait for acknowledgements.
void ack_cq_events(ibv_cq*, unsigned) {}

ibv_comp_channel* create_comp_channel(ibv_context* base) try {
  auto* context = own<Context>(base);
  if (context->instance->forked()) return errno = EOWNERDEAD, nullptr;
  auto* channel = new CompletionChannel;
  channel->base.context = base;
  channel->base.fd = channel->events.fd();
  context->children.fetch_add(1);
  return &channel->base;
} catch (const std::exception&) {
  return errno = ENOMEM, nullptr;
}

int destroy_comp_channel(ibv_comp_channel* base) {
  auto* channel = own<CompletionChannel>(base);
  auto* context = own<Context>(base->context);
  if (context->instance->forked()) return 0;
  if (channel->children.load() != 0) return EBUSY;
  context->children.fetch_sub(1);
  delete channel;
  return 0;
}

ibv_cq* create_cq(ibv_context* base, int entries, void* user, ibv_comp_channel* channel, int vector) try {
  auto* context = own<Context>(base);
  if (context->instance->forked()) return errno = EOWNERDEAD, nullptr;
  if (entries < 1 || entries > Limits::max_completions || vector < 0 || vector >= base->num_comp_vectors)
    return errno = EINVAL, nullptr;
  auto* cq = new CompletionQueue;
  cq->context = context;
  cq->base.context = base;
  cq->base.cq_context = user;
  cq->base.channel = channel;
  cq->base.cqe = entries;
  cq->entries.resize(static_cast<size_t>(entries));
  context->children.fetch_add(1);
  if (channel) own<CompletionChannel>(channel)->children.fetch_add(1);
  return &cq->base;
} catch (const std::bad_alloc&) {
  return errno = ENOMEM, nullptr;
}

int resize_cq(ibv_cq* base, int entries) try {
  auto* cq = own<CompletionQueue>(base);
  if (cq->context->instance->forked()) return EOWNERDEAD;
  if (entries < 1 || entries > Limits::max_completions) return EINVAL;
  std::vector<ibv_wc> resized(static_cast<size_t>(entries));
  std::lock_guard lock(cq->entries_mutex);
  const size_t count = cq->count.load();
  if (count > resized.size()) return EINVAL;  // the completions waiting would not fit
  for (size_t i = 0; i < count; ++i) resized[i] = cq->entries[(cq->first + i) % cq->entries.size()];
  cq->entries.swap(resized);
  cq->first = 0;
  cq->base.cqe = entries;
  return 0;
} catch (const std::bad_alloc&) {
  return ENOMEM;
}

int destroy_cq(ibv_cq* base) {
  auto* cq = own<CompletionQueue>(base);
  if (cq->context->instance->forked()) return 0;
  if (cq->children.load() != 0) return EBUSY;
  if (base->channel) {
    auto* channel = own<CompletionChannel>(base->channel);
    channel->events.remove_if([&](CompletionQueue* waiting) { return waiting == cq; });
    channel->children.fetch_sub(1);
  }
  cq->context->children.fetch_sub(1);
  delete cq;
  return 0;
}

int get_async_event(ibv_context* base, ibv_async_event* event) {
  auto next = own<Context>(base)->events.pop();
  if (!next) return -1;
  *event = *next;
  return 0;
}

void ack_async_event(ibv_async_event*) {}

}  // namespace rdmatx::soft
