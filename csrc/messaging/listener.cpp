#include "messaging/listener.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/event_descriptors.hpp"
#include "base/log.hpp"
#include "messaging/fork_guard.hpp"

namespace rdmatx {
namespace {

// A quarter of the descriptors that the process may have, up to this.
constexpr size_t most_halves = 256;
constexpr int backlog = 1024;  // the kernel's limit, net.core.somaxconn, may be less
constexpr double handshake_seconds = 10.0;
// How soon to look again whether somebody makes room, where nobody deserves it yet.
constexpr double crowded_seconds = 0.02;
constexpr std::chrono::milliseconds descriptors_pause{100};
constexpr std::chrono::seconds warning_pause{10};

size_t places() noexcept {
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return most_halves;
  return std::clamp<size_t>(descriptors.rlim_cur / 4, 8, most_halves);
}

// Once a process: whoever has many listeners knows by then.
void warn_of_open_door(const std::string& address) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  log(LogLevel::warning,
      "listening at " + address +
          ", which other hosts can reach, without a secret: whoever connects is taken for a peer. Give all "
          "sides one secret, listen(..., secret=...) and connect(..., secret=...) or RDMATX_SECRET in the "
          "environment (a random one: openssl rand -hex 32), or listen at 127.0.0.1");
}

}  // namespace

Listener::Listener(std::shared_ptr<ContextResources> resources, const std::string& address,
                   SharedSecret secret)
    : waiting_(resources->waiting),
      resources_(std::move(resources)),
      secret_(std::move(secret)),
      socket_(listen_on(address, backlog)),
      wake_(make_event_descriptor()),
      address_(own_address(socket_.get())) {
  if (!secret_ && !is_loopback(socket_.get())) warn_of_open_door(address_);
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
    if (auto connection = try_accept()) return connection;
    if (!in_time)
      throw TimeoutError(
          "accept at " + address_ + ": nobody connected within " + seconds_text(deadline.seconds()), address_,
          "accept", deadline.seconds());
  }
}

std::shared_ptr<Connection> Listener::try_accept() {
  check_not_forked(waiting_.generation);
  if (closed()) throw ClosedError("the listener at " + address_ + " was closed");
  const std::lock_guard lock(mutex_);
  if (ready_.empty()) return nullptr;
  std::shared_ptr<Connection> connection = std::move(ready_.front());
  ready_.pop_front();
  ready_count_.store(ready_.size(), std::memory_order_release);
  if (ready_.size() + 1 == most_waiting) ring(wake_);  // strangers are taken again
  return connection;
}

ListenerStats Listener::stats() const noexcept {
  return {counters_.accepted,  counters_.refused,  counters_.failed_authentication,
          counters_.timed_out, counters_.shut_out, counters_.gave_up,
          counters_.half_open, ready_count_};
}

void Listener::close() {
  if (process_generation() != waiting_.generation) return;  // the thread and the sockets are the parent's
  const std::lock_guard closing(close_mutex_);
  if (closed_.exchange(true)) return;
  ring(wake_);
  thread_.reset();
  resources_.reset();
  forget_descriptor(socket_.get());
  socket_.reset();
  std::deque<std::shared_ptr<Connection>> left;
  {
    const std::lock_guard lock(mutex_);
    wake_.reset();
    left.swap(ready_);
    ready_count_ = 0;
  }
  for (const auto& connection : left) connection->close();
  waiting_.progress->wake();
}

void Listener::run() {
  Halves halves;
  std::vector<pollfd> watched;
  while (!closed()) {
    const bool taking = takes_new(halves);
    // Where connections wait for accept(), it wakes this thread; else room comes with time.
    double seconds = taking || full() ? 60 : crowded_seconds;
    // poll() passes over a negative descriptor.
    watched.assign({{wake_.get(), POLLIN, 0}, {taking ? socket_.get() : -1, POLLIN, 0}});
    for (const Half& half : halves) {
      watched.push_back({half.socket.fd(), POLLIN, 0});
      seconds = half.deadline.left(seconds);
    }
    ::poll(watched.data(), watched.size(), static_cast<int>(seconds * 1000) + 1);
    if (closed()) return;
    if (watched[0].revents != 0) silence(wake_);
    auto entry = watched.begin() + 2;
    for (auto half = halves.begin(); half != halves.end(); ++entry)
      half = goes_on(*half, entry->revents != 0) ? std::next(half) : halves.erase(half);
    if (watched[1].revents != 0) take_new(halves);
  }
}

bool Listener::takes_new(const Halves& halves) const {
  if (full() || Clock::now() < paused_until_) return false;
  return halves.size() < places() || who_may_go(halves);
}

std::optional<size_t> Listener::who_may_go(const Halves& halves) {
  std::vector<HalfOpen> all;
  all.reserve(halves.size());
  const auto now = Clock::now();
  for (const Half& half : halves)
    all.push_back({half.source, half.stage, std::chrono::duration<double>(now - half.heard).count()});
  return who_makes_room(all);
}

bool Listener::make_room(Halves& halves) {
  const auto place = who_may_go(halves);
  if (!place) return false;
  const auto half = std::next(halves.begin(), static_cast<std::ptrdiff_t>(*place));
  log(LogLevel::info, "handshake with " + half->peer + " given up: it was quiet while others waited");
  half->socket.refuse("more connect at once than this listener takes, and this one was quiet: try again");
  ++counters_.shut_out;
  halves.erase(half);
  return true;
}

void Listener::take_new(Halves& halves) {
  // Not too many at a time: those that are here already want to go on.
  for (size_t i = 0; i < 64 && !full(); ++i) {
    if (halves.size() >= places() && !make_room(halves)) return;
    Arriving arriving = take_arriving(socket_.get());
    if (!arriving.fd) return out_of_descriptors(arriving.code, halves);
    halves.push_back({BootstrapSocket(std::move(arriving.fd)), std::move(arriving.peer), arriving.source,
                      Deadline(handshake_seconds), Presence(counters_.half_open)});
    // What an honest peer says has mostly come already: then it never counts as quiet.
    if (!goes_on(halves.back(), true)) halves.pop_back();
  }
}

void Listener::out_of_descriptors(int code, Halves& halves) {
  if (code != EMFILE && code != ENFILE && code != ENOBUFS && code != ENOMEM) return;
  if (make_room(halves)) return;
  // The socket stays readable: do not spin on it.
  const auto now = Clock::now();
  paused_until_ = now + descriptors_pause;
  if (now < warned_at_ + warning_pause) return;
  warned_at_ = now;
  log(LogLevel::warning, "cannot accept a connection at " + address_ + ": " + describe_errno(code) +
                             "; raise the limit (ulimit -n) or close connections");
}

bool Listener::goes_on(Half& half, bool heard) {
  if (heard && !advance(half)) return false;
  if (!half.deadline.passed()) return true;
  log(LogLevel::info, "handshake with " + half.peer + " was not finished in time");
  half.socket.refuse("the handshake was not finished within " + seconds_text(handshake_seconds));
  ++counters_.timed_out;
  return false;
}

bool Listener::advance(Half& half) {
  BootstrapSocket::Record record;
  RecordProblem problem;
  try {
    switch (half.socket.try_receive(record, problem)) {
      case BootstrapSocket::Arrival::nothing_yet:
        return true;
      case BootstrapSocket::Arrival::closed:
        ++counters_.gave_up;
        return false;
      case BootstrapSocket::Arrival::malformed:
        if (problem.unproved) throw AuthenticationError(problem.text, half.peer);
        throw UnavailableError(problem.text);
      case BootstrapSocket::Arrival::record:
        break;
    }
    half.heard = Clock::now();
    if (half.stage != HandshakeStage::answered) {
      handle(half, record);
      return true;
    }
    if (record.head.kind != RecordKind::ready) throw UnavailableError("an unexpected handshake record came");
    auto connection = half.endpoint->finish(std::move(half.socket), half.peer);
    // Counted before anybody can have it: who was accepted and asks finds itself there.
    half.counted.end();
    ++counters_.accepted;
    deliver(std::move(connection));
  } catch (const AuthenticationError& error) {
    log(LogLevel::info, "authentication of " + half.peer + " failed: " + error.what());
    half.socket.refuse(error.what(), RecordKind::denied);
    ++counters_.failed_authentication;
  } catch (const std::exception& error) {
    log(LogLevel::info, "handshake with " + half.peer + " failed: " + error.what());
    half.socket.refuse(error.what());
    ++counters_.refused;
  }
  return false;
}

void Listener::handle(Half& half, const BootstrapSocket::Record& record) {
  if (half.stage == HandshakeStage::silent && record.head.kind == RecordKind::greeting)
    return challenge(half, record);
  if (record.head.kind != RecordKind::hello) throw UnavailableError("a handshake starts with a hello");
  if (secret_ && half.stage == HandshakeStage::silent)
    throw AuthenticationError(
        "the listener asks for its secret, and the connecting side has none: give it the same one, "
        "connect(..., secret=...) or RDMATX_SECRET in its environment",
        half.peer);
  answer(half, record);
}

void Listener::challenge(Half& half, const BootstrapSocket::Record& record) {
  const auto nonce = decode_greeting(record.body);
  if (!nonce) throw UnavailableError("the peer's greeting is malformed: its length is wrong");
  if (!secret_)
    throw AuthenticationError(
        "the connecting side has a secret and the listener has none: give it the same one, "
        "listen(..., secret=...) or RDMATX_SECRET in its environment, or none to both",
        half.peer);
  const Nonce own = random_nonce();
  const SessionKeys keys(*secret_, *nonce, own);
  half.socket.send_now(encode_challenge({own, keys.proof()}));
  half.socket.protect(RecordSeal(keys, Side::listener));
  half.stage = HandshakeStage::greeted;
}

void Listener::answer(Half& half, const BootstrapSocket::Record& record) {
  RecordProblem problem;
  const auto hello = decode_handshake(record.body, problem);
  if (!hello) throw UnavailableError(problem.text);
  half.endpoint = std::make_unique<Endpoint>(resources_);
  half.socket.send_now(encode(RecordKind::accept, half.endpoint->answer(*hello)));
  half.stage = HandshakeStage::answered;
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
