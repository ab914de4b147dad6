#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/peer.hpp"
#include "soft/tcp_link.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {
namespace {

bool somebody_polls(QueuePair& qp) {
  const uint64_t polls =
      qp.send_cq->polls.load(std::memory_order_relaxed) + qp.recv_cq->polls.load(std::memory_order_relaxed);
  const bool polled = polls != qp.polls_seen;
  qp.polls_seen = polls;
  // Whoever armed a queue is about to sleep on its channel.
  const bool armed = qp.send_cq->armed.load() != CompletionQueue::not_armed ||
                     qp.recv_cq->armed.load() != CompletionQueue::not_armed;
  return polled && !armed;
}

}  // namespace

void ask_for_doorbell(QueuePair& qp) {
  if (qp.inbound) qp.inbound->state().responder_asleep.exchange(1);
  if (qp.outbound) qp.outbound->state().requester_asleep.exchange(1);
  if (qp.tcp) tcp_arm(qp);
}

int drive_unpolled(Instance& instance) {
  bool moved = false, look_again_soon = false;
  instance.for_each([&](QueuePair& qp) {
    if (somebody_polls(qp)) {
      look_again_soon = true;
      return;
    }
    std::unique_lock lock(qp.mutex, std::try_to_lock);
    if (!lock) {  // somebody drives it this moment
      look_again_soon = true;
      return;
    }
    // First the request to be woken, then the look: what comes between the two rings the doorbell. Of sockets
    // the kernel also tells what was there before, and a look at one that it has told of comes first.
    if (!qp.tcp) ask_for_doorbell(qp);
    moved |= drive(qp);
    if (qp.tcp) ask_for_doorbell(qp);
    look_again_soon |= timer_runs(qp);
  });
  return moved ? 0 : look_again_soon ? patrol_ms : -1;
}

}  // namespace rdmatx::soft
