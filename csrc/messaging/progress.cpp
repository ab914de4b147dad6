#include "messaging/progress.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "base/event_descriptors.hpp"
#include "base/log.hpp"
#include "messaging/event_watch.hpp"
#include "rdma/handle.hpp"

namespace rdmatx {
namespace {

using Clock = Deadline::Clock;
using std::chrono::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;

std::atomic<void (*)()> interrupt_check{nullptr};

constexpr double longest_sleep_seconds = 0.1;  // and so the longest time a Ctrl-C waits
constexpr double sleep_beside_gpu_seconds = 0.0005;
constexpr milliseconds peer_check_interval{5};

// How long a wait spins and yields before it sleeps. With one processor spinning only keeps the peer off it.
struct Patience {
  microseconds spin;
  microseconds yield;
  microseconds yield_while_busy;
};

Patience read_patience() {
  const bool alone = sysconf(_SC_NPROCESSORS_ONLN) < 2;
  Patience patience{microseconds(alone ? 0 : 50), microseconds(alone ? 200 : 2000), microseconds(50000)};
  if (const char* text = std::getenv("RDMATX_SPIN_US")) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 0 || value > 10'000'000) {
      log(LogLevel::warning,
          std::string("RDMATX_SPIN_US is \"") + text +
              "\", and should be a number of microseconds from 0 to 10000000; it is ignored");
    } else {
      patience.spin = microseconds(value);
    }
  }
  return patience;
}

const Patience& patience() {
  static const Patience value = read_patience();
  return value;
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void set_interrupt_check(void (*check)()) {
  interrupt_check.store(check);
}

void check_interrupt() {
  if (auto* check = interrupt_check.load(std::memory_order_relaxed)) check();
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

Progress::Progress(std::vector<std::shared_ptr<CompletionChannel>> events)
    : connections_(std::make_shared<List>()), watch_(std::make_shared<Watch>()) {
  watch_->events = std::move(events);
  watch_->epoll = make_epoll();
  watch_->sockets = make_epoll();
  watch_->wake = make_event_descriptor();
  for (const auto& channel : watch_->events) add_to_epoll(watch_->epoll, channel->fd(), EPOLLIN);
  add_to_epoll(watch_->epoll, watch_->sockets.get(), EPOLLIN);
  add_to_epoll(watch_->epoll, watch_->wake.get(), EPOLLIN);
}

void Progress::add(const std::shared_ptr<Progressing>& connection, int socket) {
  {
    const std::lock_guard lock(sleep_mutex_);
    if (!watch_) throw ClosedError("the context was closed meanwhile: open a new one");
    add_to_epoll(watch_->sockets, socket, EPOLLIN | EPOLLRDHUP);
  }
  const std::lock_guard lock(list_mutex_);
  auto list = std::make_shared<List>(*connections_);
  list->push_back(connection);
  count_ = list->size();
  connections_ = std::move(list);
}

void Progress::remove(const Progressing* connection, int socket) noexcept {
  unwatch(socket);
  const std::lock_guard lock(list_mutex_);
  auto list = std::make_shared<List>();
  for (const auto& weak : *connections_) {
    const auto other = weak.lock();
    if (other && other.get() != connection) list->push_back(weak);
  }
  count_ = list->size();
  connections_ = std::move(list);
}

void Progress::unwatch(int socket) noexcept {
  const std::lock_guard lock(sleep_mutex_);
  if (watch_) ::epoll_ctl(watch_->sockets.get(), EPOLL_CTL_DEL, socket, nullptr);
}

std::shared_ptr<const Progress::List> Progress::connections() const {
  const std::lock_guard lock(list_mutex_);
  return connections_;
}

bool Progress::look(Progressing* first, bool all) {
  bool progressed = first && first->progress();
  if (all && count_.load(std::memory_order_relaxed) > (first ? 1u : 0u)) {
    const auto list = connections();  // kept: another thread may replace it meanwhile
    for (const auto& weak : *list) {
      const auto connection = weak.lock();
      if (connection && connection.get() != first) progressed |= connection->progress();
    }
  }
  return progressed;
}

// Also of many short waits, one finds it due.
bool Progress::peers_are_due(Clock::time_point now) noexcept {
  auto last = peers_checked_.load(std::memory_order_relaxed);
  if (now.time_since_epoch() - Clock::duration(last) < peer_check_interval) return false;
  return peers_checked_.compare_exchange_strong(last, now.time_since_epoch().count(),
                                                std::memory_order_relaxed);
}

void Progress::look_at_peers() {
  const auto list = connections();  // kept: another thread may replace it meanwhile
  for (const auto& weak : *list)
    if (const auto connection = weak.lock()) connection->check_peer();
}

bool Progress::wait(Progressing* first, const std::function<bool()>& done, const Deadline& deadline) {
  if (done()) return true;
  auto now = Clock::now();
  auto idle_since = now;
  auto interrupt_checked = now;
  for (unsigned round = 1;; ++round) {
    const bool progressed = look(first, round % 16 == 0);
    if (done()) return true;
    const auto idle = now - idle_since;
    const bool spinning = idle < patience().spin;
    // The clock costs as much as a look: in a spin it is read now and then only.
    if (spinning && !progressed && round % 16 != 0) {
      pause_briefly();
      continue;
    }
    now = Clock::now();
    if (progressed) idle_since = now;
    if (peers_are_due(now)) {
      look_at_peers();
      if (done()) return true;
    }
    if (deadline.passed()) return false;
    if (now - interrupt_checked > milliseconds(50)) {
      interrupt_checked = now;
      check_interrupt();
    }
    if (spinning || progressed) continue;
    const auto limit = first && first->wants_polling() ? patience().yield_while_busy : patience().yield;
    if (idle < patience().spin + limit) {
      ::sched_yield();
      continue;
    }
    if (sleep(first, done, deadline)) return true;
    now = interrupt_checked = Clock::now();
    check_interrupt();
    // What woke us is mostly alone: look a while, then sleep again.
    idle_since = now - patience().spin - limit + std::min<Clock::duration>(microseconds(50), limit);
  }
}

bool Progress::sleep(Progressing* first, const std::function<bool()>& done, const Deadline& deadline) {
  std::unique_lock lock(sleep_mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  struct Leave {
    std::atomic<int>& sleepers;
    ~Leave() { sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  } leave{sleepers_};
  // A GPU rings for nobody.
  const double seconds = deadline.left(waits_for_gpu() ? sleep_beside_gpu_seconds : longest_sleep_seconds);
  if (watched_ || !watch_) {
    const uint64_t number = wake_number_;
    if (done()) return true;
    woken_.wait_for(lock, duration<double>(seconds), [&] { return wake_number_ != number; });
    return done();
  }
  watched_ = true;
  const std::shared_ptr<Watch> watch = watch_;
  lock.unlock();
  struct Hand {  // the watch goes to one of the others
    Progress& progress;
    ~Hand() {
      const std::lock_guard again(progress.sleep_mutex_);
      progress.watched_ = false;
      ++progress.wake_number_;
      progress.woken_.notify_all();
    }
  } hand{*this};
  if (first) first->arm();
  arm_all();
  // What completed before a queue was armed gives no event.
  if (look(first, true) || done()) return done();
  watch_descriptors(*watch, seconds);
  look(first, true);
  return done();
}

void Progress::watch_descriptors(Watch& watch, double seconds) {
  epoll_event ready[16];
  const int count = ::epoll_wait(watch.epoll.get(), ready, 16, static_cast<int>(seconds * 1000) + 1);
  bool peers = false;
  for (int i = 0; i < count; ++i) {
    const int fd = ready[i].data.fd;
    if (fd == watch.wake.get()) {
      silence(watch.wake);
    } else if (const auto channel = std::find_if(watch.events.begin(), watch.events.end(),
                                                 [fd](const auto& one) { return one->fd() == fd; });
               channel != watch.events.end()) {
      take_events(**channel);
    } else {
      peers = true;
    }
  }
  if (peers) look_at_peers();
}

void Progress::take_events(CompletionChannel& events) {
  while (const auto queue = events.get_event(0)) {
    const auto list = connections();  // kept: another thread may replace it meanwhile
    for (const auto& weak : *list) {
      const auto connection = weak.lock();
      if (connection && connection->owns(queue.get())) connection->event_came();
    }
  }
}

void Progress::stop() noexcept {
  std::shared_ptr<Watch> gone;
  const std::lock_guard lock(sleep_mutex_);
  gone = std::move(watch_);
}

void Progress::wake_sleepers() noexcept {
  const std::lock_guard lock(sleep_mutex_);
  ++wake_number_;
  woken_.notify_all();
  for (EventWatch* watch : event_watches_) watch->wake();
  if (watched_ && watch_) ring(watch_->wake);
}

bool Progress::waits_for_gpu() const {
  const auto list = connections();  // kept: another thread may replace it meanwhile
  for (const auto& weak : *list)
    if (const auto connection = weak.lock(); connection && connection->waits_for_gpu()) return true;
  return false;
}

void Progress::arm_all() {
  const auto list = connections();  // kept: another thread may replace it meanwhile
  for (const auto& weak : *list)
    if (const auto connection = weak.lock()) connection->arm();
}

std::shared_ptr<Progress::Watch> Progress::add(EventWatch* watch) {
  const std::lock_guard lock(sleep_mutex_);
  if (!watch_) throw ClosedError("the context was closed: open a new one");
  event_watches_.push_back(watch);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  return watch_;
}

void Progress::remove(EventWatch* watch) noexcept {
  const std::lock_guard lock(sleep_mutex_);
  if (std::erase(event_watches_, watch) > 0) sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

ServiceThread::ServiceThread(std::function<void()> body) : generation_(process_generation()) {
  // Signals are for the user's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread(std::move(body));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ServiceThread::~ServiceThread() {
  if (process_generation() != generation_ || thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

}  // namespace rdmatx
