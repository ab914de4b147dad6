#include "messaging/event_watch.hpp"

#include <sys/epoll.h>

#include <utility>

#include "base/event_descriptors.hpp"

namespace rdmatx {
namespace {

// Whose serve() runs in this thread: it looks itself, and need not be woken.
thread_local const EventWatch* serving = nullptr;

}  // namespace

EventWatch::EventWatch(std::shared_ptr<Progress> progress)
    : progress_(std::move(progress)),
      wake_(make_event_descriptor()),
      epoll_(make_epoll()),
      watch_(progress_->add(this)) {
  try {
    for (const auto& channel : watch_->events) add_to_epoll(epoll_, channel->fd(), EPOLLIN);
    add_to_epoll(epoll_, watch_->sockets.get(), EPOLLIN);
    add_to_epoll(epoll_, wake_.get(), EPOLLIN);
  } catch (...) {
    progress_->remove(this);
    throw;
  }
}

EventWatch::~EventWatch() {
  progress_->remove(this);
}

void EventWatch::wake() const noexcept {
  if (serving != this) ring(wake_);
}

void EventWatch::serve() {
  struct Serving {
    explicit Serving(const EventWatch* watch) : before(std::exchange(serving, watch)) {}
    ~Serving() { serving = before; }
    const EventWatch* before;
  } guard(this);
  silence(wake_);
  for (const auto& channel : watch_->events) progress_->take_events(*channel);
  progress_->look_at_peers();
  constexpr int most_rounds = 64;  // the loop has others to serve
  for (int round = 0; round < most_rounds && progress_->look(nullptr, true); ++round) {
  }
  progress_->arm_all();
  // What completed before a queue was armed gives no event.
  if (progress_->look(nullptr, true) || progress_->waits_for_gpu()) ring(wake_);
}

}  // namespace rdmatx
