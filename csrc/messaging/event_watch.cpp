#include "messaging/event_watch.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.hpp"

namespace rdmatx {
namespace {

UniqueFd checked(int fd, const char* call) {
  if (fd < 0) throw Error(std::string(call) + " failed: " + describe_errno(errno));
  return UniqueFd(fd);
}

void watch_fd(int epoll, int fd) {
  epoll_event event{EPOLLIN, {.fd = fd}};
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
    throw Error("epoll_ctl failed: " + describe_errno(errno));
}

void ring(int eventfd) noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(eventfd, &one, sizeof one);
}

// Whose serve() runs in this thread: it looks itself, and need not be woken.
thread_local const EventWatch* serving = nullptr;

}  // namespace

EventWatch::EventWatch(std::shared_ptr<Progress> progress)
    : progress_(std::move(progress)),
      wake_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      watch_(progress_->add(this)) {
  try {
    for (const auto& channel : watch_->events) watch_fd(epoll_.get(), channel->fd());
    watch_fd(epoll_.get(), watch_->sockets.get());
    watch_fd(epoll_.get(), wake_.get());
  } catch (...) {
    progress_->remove(this);
    throw;
  }
}

EventWatch::~EventWatch() {
  progress_->remove(this);
}

void EventWatch::wake() const noexcept {
  if (serving != this) ring(wake_.get());
}

void EventWatch::serve() {
  struct Serving {
    explicit Serving(const EventWatch* watch) : before(std::exchange(serving, watch)) {}
    ~Serving() { serving = before; }
    const EventWatch* before;
  } guard(this);
  uint64_t value = 0;
  [[maybe_unused]] const auto taken = ::read(wake_.get(), &value, sizeof value);
  for (const auto& channel : watch_->events) progress_->take_events(*channel);
  progress_->look_at_peers();
  constexpr int most_rounds = 64;  // the loop has others to serve
  for (int round = 0; round < most_rounds && progress_->look(nullptr, true); ++round) {
  }
  progress_->arm_all();
  // What completed before a queue was armed gives no event.
  if (progress_->look(nullptr, true)) ring(wake_.get());
}

}  // namespace rdmatx
