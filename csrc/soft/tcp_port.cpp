#include "soft/tcp_port.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/tcp_link.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {
namespace {

constexpr uint64_t linger_ns = 1'000'000'000;
constexpr uint64_t host_check_ns = 1'000'000'000;

std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

PortRange range_from_environment() {
  const std::string text = environment("RDMATX_SOFT_PORTS");
  if (text.empty()) return {};
  if (auto range = PortRange::parse(text.c_str())) return *range;
  throw Error("RDMATX_SOFT_PORTS=" + text +
              " is no range of TCP ports: write FIRST-LAST, at most 256 ports, the same on every host "
              "(61000-61255 without it)");
}

/// A whole number within bounds, or what holds without the variable.
int number_from_environment(const char* name, int low, int high, int otherwise) {
  const std::string text = environment(name);
  if (text.empty()) return otherwise;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && end == text.data() + text.size() && number >= low && number <= high)
    return number;
  throw Error(std::string(name) + "=" + text + " is no number from " + std::to_string(low) + " to " +
              std::to_string(high));
}

/// More than one stream pays where a core more can copy; two ends that share two cores have none to spare.
int default_streams() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 4);
}

bool set(int fd, int level, int option, int value) {
  return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

/// Whether a program that is not rdmatx listens on the port.
bool taken(uint16_t port) {
  Socket probe(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress any;
  if (probe) {
    set(probe.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    auto& six = reinterpret_cast<sockaddr_in6&>(any.storage);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    any.size = sizeof six;
  } else {  // a kernel without IPv6
    probe = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    auto& four = reinterpret_cast<sockaddr_in&>(any.storage);
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    any.size = sizeof four;
  }
  if (!probe) return true;
  set(probe.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  return bind(probe.get(), any.get(), any.size) != 0;
}

}  // namespace

std::optional<PortRange> PortRange::parse(const char* text) {
  const char* end = text + std::strlen(text);
  PortRange range;
  const auto first = std::from_chars(text, end, range.first);
  if (first.ec != std::errc{} || first.ptr == end || *first.ptr != '-') return std::nullopt;
  const auto last = std::from_chars(first.ptr + 1, end, range.last);
  if (last.ec != std::errc{} || last.ptr != end) return std::nullopt;
  if (range.first == 0 || range.last < range.first || range.last - range.first > 255) return std::nullopt;
  return range;
}

TcpPort::TcpPort(Instance& instance, int epoll)
    : instance_(instance),
      epoll_(epoll),
      range_(range_from_environment()),
      streams_(number_from_environment("RDMATX_SOFT_STREAMS", 1, TcpHello::max_streams, default_streams())),
      peer_timeout_ns_(uint64_t(number_from_environment("RDMATX_SOFT_PEER_TIMEOUT", 1, 3600, 5)) *
                       1'000'000'000),
      congestion_(environment("RDMATX_SOFT_CONGESTION")) {
  reserve();
}

TcpPort::~TcpPort() = default;

void TcpPort::reserve() {
  for (uint32_t port = range_.first; port <= range_.last; ++port) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const int length =
        std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "rdmatx-port-%u", port);
    Socket name(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto size =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
    if (!name) return;
    if (bind(name.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) continue;
    if (taken(static_cast<uint16_t>(port))) continue;
    reservation_ = std::move(name);
    slot_ = port - range_.first;
    return;
  }
  log(LogLevel::info, "the software HCA found none of its TCP ports free (" + std::to_string(range_.first) +
                          "-" + std::to_string(range_.last) + "): this process reaches its own host only");
}

std::shared_ptr<TcpListener> TcpPort::listen(const ibv_gid& address, int* error) {
  if (!slot_) {
    log(LogLevel::error, "the software HCA has no TCP port: all of " + std::to_string(range_.first) + "-" +
                             std::to_string(range_.last) + " are taken; name more with RDMATX_SOFT_PORTS");
    *error = EADDRINUSE;
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  for (auto& [token, weak] : listeners_)
    if (auto known = weak.lock(); known && equal(local_gid(known->socket()), address)) return known;
  std::erase_if(listeners_, [](auto& entry) { return entry.second.expired(); });

  const SocketAddress here = address_of(address, static_cast<uint16_t>(range_.first + *slot_));
  Socket socket(::socket(here.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket) set(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // connections of a predecessor may linger
  if (socket && here.family() == AF_INET6) set(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (!socket || bind(socket.get(), here.get(), here.size) != 0 || ::listen(socket.get(), 512) != 0) {
    *error = errno;
    log(LogLevel::error, "the software HCA cannot listen on " + text_of(address) + ", port " +
                             std::to_string(range_.first + *slot_) + ": " + describe_errno(*error));
    return nullptr;
  }
  auto listener = std::make_shared<TcpListener>(std::move(socket), next_token());
  if (!watch(listener->socket().get(), listener->token(), EPOLLIN)) {
    *error = errno;
    return nullptr;
  }
  listeners_[listener->token()] = listener;
  return listener;
}

void TcpPort::tune(const Socket& socket) const {
  const int fd = socket.get();
  const int seconds = static_cast<int>(peer_timeout_ns_ / 1'000'000'000);
  const int idle = std::max(1, seconds / 2);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, std::max(1, seconds - idle));
  // BBR paces, which costs half of the bandwidth where no network lies between.
  const ibv_gid peer = remote_gid(socket);
  const bool within_host = is_loopback(peer) || instance_.gids().holds(peer);
  const std::string algorithm = !congestion_.empty() ? congestion_ : within_host ? "reno" : "";
  if (!algorithm.empty() &&
      setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, algorithm.data(),
                 static_cast<socklen_t>(algorithm.size())) != 0 &&
      !congestion_.empty())
    log(LogLevel::warning, "the kernel does not take RDMATX_SOFT_CONGESTION=" + congestion_ + ": " +
                               describe_errno(errno) +
                               " (sysctl net.ipv4.tcp_allowed_congestion_control lists what it takes)");
}

bool TcpPort::watch(int fd, uint64_t token, uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  return epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0 ||
         epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event) == 0;
}

std::unique_ptr<TcpStream> TcpPort::adopt(Socket socket) {
  const uint64_t token = next_token();
  auto armed = std::make_shared<std::atomic<uint32_t>>(0);
  {
    const std::lock_guard lock(mutex_);
    if (watched_.size() >= purge_at_) {
      std::erase_if(watched_, [](auto& entry) { return entry.second.use_count() == 1; });
      purge_at_ = std::max<size_t>(64, 2 * watched_.size());
    }
    watched_[token] = armed;
  }
  watch(socket.get(), token, EPOLLONESHOT);
  return std::make_unique<TcpStream>(std::move(socket), token, std::move(armed));
}

void TcpPort::linger(Socket socket, std::vector<std::byte> unsent) {
  const std::lock_guard lock(mutex_);
  if (new_leavers_.size() < max_lingering)
    new_leavers_.push_back({std::move(socket), std::move(unsent), 0, now_ns() + linger_ns, false});
  instance_.wire().wake();
}

void TcpPort::handle_event(uint64_t token) {
  std::shared_ptr<TcpListener> listener;
  {
    const std::lock_guard lock(mutex_);
    if (auto found = watched_.find(token); found != watched_.end()) {
      found->second->store(TcpStream::told, std::memory_order_release);  // whoever drives looks again
      return;
    }
    if (auto found = listeners_.find(token); found != listeners_.end()) listener = found->second.lock();
  }
  if (listener) return accept_from(listener);
  if (auto arrival = arrivals_.find(token); arrival != arrivals_.end()) {
    if (arrival->second.hello || !read_hello(arrival->second)) arrivals_.erase(arrival);
    return;
  }
  if (auto leaver = leavers_.find(token); leaver != leavers_.end()) {
    if (leave(leaver->second)) leavers_.erase(leaver);
    return;
  }
  for (Departure& departure : departures_)
    for (Departure::Stream& stream : departure.streams)
      if (stream.token == token) return proceed(departure, stream);
}

/// True once nothing is left to do for it.
bool TcpPort::leave(Leaver& leaver) {
  while (leaver.sent < leaver.unsent.size()) {
    const ssize_t sent = send(leaver.socket.get(), leaver.unsent.data() + leaver.sent,
                              leaver.unsent.size() - leaver.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno != EAGAIN && errno != EINTR;
    leaver.sent += static_cast<size_t>(sent);
  }
  if (!leaver.shut) shutdown(leaver.socket.get(), SHUT_WR);
  leaver.shut = true;
  // What still comes is of no interest, but closing with it unread would undo what was sent last.
  static thread_local std::array<std::byte, 64 * 1024> discarded;
  for (int i = 0; i < 64; ++i) {
    const ssize_t bytes = recv(leaver.socket.get(), discarded.data(), discarded.size(), MSG_DONTWAIT);
    if (bytes == 0) return true;
    if (bytes < 0) return errno != EAGAIN && errno != EINTR;
  }
  return false;
}

void TcpPort::take_requests() {
  std::vector<Leaver> leavers;
  {
    const std::lock_guard lock(mutex_);
    for (Departure& departure : new_departures_) departures_.push_back(std::move(departure));
    new_departures_.clear();
    leavers.swap(new_leavers_);
  }
  for (Leaver& leaver : leavers) {
    if (leave(leaver) || leavers_.size() >= max_lingering) continue;
    const uint64_t token = next_token();
    watch(leaver.socket.get(), token, EPOLLIN | (leaver.shut ? 0u : EPOLLOUT));
    leavers_.emplace(token, std::move(leaver));
  }
}

bool TcpPort::at_rest() {
  const std::lock_guard lock(mutex_);
  return leavers_.empty() && new_leavers_.empty();
}

void TcpPort::check_hosts(uint64_t now) {
  hosts_checked_ns_ = 0;
  {
    const std::lock_guard lock(mutex_);
    if (std::all_of(listeners_.begin(), listeners_.end(), [](auto& entry) { return entry.second.expired(); }))
      return;  // no queue pair has a link
  }
  hosts_checked_ns_ = now;
  instance_.for_each([&](QueuePair& qp) {
    const std::lock_guard lock(qp.mutex);
    if (qp.tcp) tcp_check_host(qp, now);
  });
}

int TcpPort::work() {
  const uint64_t now = now_ns();
  take_requests();
  admit_all();
  if (accept_again_ns_ != 0 && now >= accept_again_ns_) {
    accept_again_ns_ = 0;
    const std::lock_guard lock(mutex_);
    for (auto& [token, weak] : listeners_)
      if (auto listener = weak.lock()) watch(listener->socket().get(), token, EPOLLIN);
  }
  std::erase_if(arrivals_, [&](auto& entry) { return now >= entry.second.deadline_ns; });
  std::erase_if(leavers_, [&](auto& entry) { return now >= entry.second.deadline_ns; });
  for (Departure& departure : departures_) {
    if (departure.streams.empty() ? now < departure.next_ns
                                  : departure.deadline_ns == 0 || now < departure.deadline_ns)
      continue;
    if (!departure.streams.empty())
      retry(departure, true);  // nothing answered
    else
      start(departure);
  }
  std::erase_if(departures_, [](const Departure& departure) { return departure.over; });
  if (now - hosts_checked_ns_ >= host_check_ns) check_hosts(now);

  uint64_t next = hosts_checked_ns_ != 0 ? hosts_checked_ns_ + host_check_ns : ~uint64_t{0};
  const auto sooner = [&](uint64_t when) { next = when != 0 ? std::min(next, when) : next; };
  sooner(accept_again_ns_);
  for (auto& [token, arrival] : arrivals_) sooner(arrival.deadline_ns);
  for (auto& [token, leaver] : leavers_) sooner(leaver.deadline_ns);
  for (const Departure& departure : departures_)
    sooner(departure.streams.empty() ? departure.next_ns : departure.deadline_ns);
  if (next == ~uint64_t{0}) return -1;
  return next <= now ? 0 : static_cast<int>(std::min<uint64_t>((next - now) / 1'000'000 + 1, 60'000));
}

}  // namespace rdmatx::soft
