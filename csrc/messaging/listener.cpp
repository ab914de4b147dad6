#include "messaging/listener.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "messaging/fork_guard.hpp"

namespace rdmatx {
namespace {

constexpr size_t most_halves = 64;
constexpr double handshake_seconds = 10.0;
constexpr int backlog = 128;

}  // namespace

Listener::Listener(std::shared_ptr<ContextResources> resources, const std::string& address)
    : waiting_(resources->waiting),
      resources_(std::move(resources)),
      socket_(listen_on(address, backlog)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      address_(own_address(socket_.get())) {
  if (!wake_) throw Error("eventfd failed: " + describe_errno(errno));
  neutralize_in_child(socket_.get());
  thread_ = std::make_unique<ServiceThread>([this] { run(); });
}

Listener::~Listener() {
  close();
}

std::shared_ptr<Connection> Listener::accept(std::optional<double> timeout) {
  check_not_forked(waiting_.generation);
  const Deadline deadline = waiting_.deadline(timeout);
  for (;;) {
    const bool in_time = waiting_.progress->wait(
        nullptr, [this] { return closed() || ready_count_.load(std::memory_order_acquire) > 0; }, deadline);
    if (closed()) throw ClosedError("the listener at " + address_ + " was closed");
    if (!in_time)
      throw TimeoutError(
          "accept at " + address_ + ": nobody connected within " + seconds_text(deadline.seconds()), address_,
          "accept", deadline.seconds());
    const std::lock_guard lock(mutex_);
    if (ready_.empty()) continue;  // another thread took it
    std::shared_ptr<Connection> connection = std::move(ready_.front());
    ready_.pop_front();
    ready_count_.store(ready_.size(), std::memory_order_release);
    return connection;
  }
}

void Listener::close() {
  if (process_generation() != waiting_.generation) return;  // the thread and the sockets are the parent's
  const std::lock_guard closing(close_mutex_);
  if (closed_.exchange(true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  thread_.reset();
  resources_.reset();
  wake_.reset();
  forget_descriptor(socket_.get());
  socket_.reset();
  std::deque<std::shared_ptr<Connection>> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(ready_);
    ready_count_ = 0;
  }
  for (const auto& connection : left) connection->close();
  waiting_.progress->wake();
}

void Listener::run() {
  std::list<Half> halves;
  std::vector<pollfd> watched;
  while (!closed()) {
    watched.assign({{wake_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}});
    double seconds = 60;
    for (const Half& half : halves) {
      watched.push_back({half.socket.fd(), POLLIN, 0});
      seconds = half.deadline.left(seconds);
    }
    ::poll(watched.data(), watched.size(), static_cast<int>(seconds * 1000) + 1);
    if (closed()) return;
    for (auto half = halves.begin(); half != halves.end();) {
      const bool goes_on = advance(*half) && !half->deadline.passed();
      half = goes_on ? std::next(half) : halves.erase(half);
    }
    if (watched[1].revents != 0) take_new(halves);
  }
}

void Listener::take_new(std::list<Half>& halves) {
  for (size_t i = 0; i < most_halves; ++i) {
    UniqueFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      // Out of descriptors, the socket stays readable: do not spin on it.
      if (errno == EMFILE || errno == ENFILE) {
        log(LogLevel::warning, "cannot accept a connection at " + address_ + ": " + describe_errno(errno) +
                                   "; raise the limit (ulimit -n) or close connections");
        ::usleep(100'000);
      }
      return;
    }
    // Whoever says nothing for longest makes room.
    if (halves.size() >= most_halves) halves.pop_front();
    const std::string peer = peer_address(fd.get());
    halves.push_back({BootstrapSocket(std::move(fd)), peer, Deadline(handshake_seconds), nullptr});
  }
}

bool Listener::advance(Half& half) {
  BootstrapSocket::Record record;
  RecordProblem problem;
  try {
    switch (half.socket.try_receive(record, problem)) {
      case BootstrapSocket::Arrival::nothing_yet:
        return true;
      case BootstrapSocket::Arrival::closed:
        return false;
      case BootstrapSocket::Arrival::malformed:
        throw UnavailableError(problem.text);
      case BootstrapSocket::Arrival::record:
        break;
    }
    if (!half.endpoint) {
      answer(half, record);
      return true;
    }
    if (record.head.kind != RecordKind::ready) throw UnavailableError("an unexpected handshake record came");
    deliver(half.endpoint->finish(std::move(half.socket), half.peer));
  } catch (const std::exception& error) {
    log(LogLevel::info, "handshake with " + half.peer + " failed: " + error.what());
    half.socket.refuse(error.what());
  }
  return false;
}

void Listener::answer(Half& half, const BootstrapSocket::Record& record) {
  RecordProblem problem;
  const auto hello = decode_handshake(record.body, problem);
  if (record.head.kind != RecordKind::hello) throw UnavailableError("a handshake starts with a hello");
  if (!hello) throw UnavailableError(problem.text);
  half.endpoint = std::make_unique<Endpoint>(resources_);
  half.socket.send_now(encode(RecordKind::accept, half.endpoint->answer(*hello)));
}

void Listener::deliver(std::shared_ptr<Connection> connection) {
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(connection));
    ready_count_.store(ready_.size(), std::memory_order_release);
  }
  waiting_.progress->wake();
}

}  // namespace rdmatx
