// Sockets that were accepted: the hello, and the wait for the queue pair it names; see tcp_port.hpp.

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "base/log.hpp"
#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/tcp_link.hpp"
#include "soft/tcp_port.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {
namespace {

/// For a hello, and then for its queue pair to get ready: a requester that was sent away comes again.
constexpr uint64_t arrival_ns = 2'000'000'000;
constexpr uint64_t accept_pause_ns = 100'000'000;

ibv_gid gid_from(const TcpHello::Address& address) {
  ibv_gid gid{};
  std::memcpy(gid.raw, address.data(), address.size());
  return gid;
}

/// A requester says nothing between its hello and the welcome: what has come is the end, or no peer's.
bool gave_up(const Socket& socket) {
  char byte;
  const ssize_t bytes = recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return bytes >= 0 || (errno != EAGAIN && errno != EINTR);
}

enum class Verdict { admitted, early, unknown };

/// Whether the queue pair is ready for just this requester.
Verdict judge(const QueuePair& qp, const TcpHello& hello) {
  const int state = qp.state.load();
  const bool ready = state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD;
  if (!ready || !qp.tcp) return Verdict::early;
  const bool expected =
      qp.attributes.dest_qp_num == hello.requester && equal(qp.tcp->destination, gid_from(hello.source)) &&
      equal(qp.tcp->source, gid_from(hello.destination)) && qp.attributes.rq_psn == hello.request_psn &&
      (state == IBV_QPS_RTR || qp.attributes.sq_psn == hello.reply_psn);
  if (!expected || qp.tcp->inbound_used) return Verdict::early;  // meant for a later life of it, perhaps
  return Verdict::admitted;
}

}  // namespace

void TcpPort::make_room() {
  auto oldest = arrivals_.end();
  for (auto entry = arrivals_.begin(); entry != arrivals_.end(); ++entry)
    if (!entry->second.hello &&
        (oldest == arrivals_.end() || entry->second.deadline_ns < oldest->second.deadline_ns))
      oldest = entry;
  if (oldest != arrivals_.end()) arrivals_.erase(oldest);
}

void TcpPort::accept_from(const std::shared_ptr<TcpListener>& listener) {
  for (int i = 0; i < 64; ++i) {
    Socket socket(accept4(listener->socket().get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      make_room();
      epoll_event none{};
      none.data.u64 = listener->token();
      epoll_ctl(epoll_, EPOLL_CTL_MOD, listener->socket().get(), &none);
      accept_again_ns_ = now_ns() + accept_pause_ns;
      return;
    }
    const auto silent = static_cast<size_t>(
        std::count_if(arrivals_.begin(), arrivals_.end(), [](auto& entry) { return !entry.second.hello; }));
    if (silent >= max_half_open) make_room();
    const uint64_t token = next_token();
    Arrival arrival;
    arrival.socket = std::move(socket);
    arrival.deadline_ns = now_ns() + arrival_ns;
    tune(arrival.socket);
    if (!read_hello(arrival) || !watch(arrival.socket.get(), token, EPOLLIN)) continue;
    arrivals_.emplace(token, std::move(arrival));
  }
}

/// False where the socket is of no use.
bool TcpPort::read_hello(Arrival& arrival) {
  const ssize_t bytes = recv(arrival.socket.get(), arrival.bytes.data() + arrival.count,
                             arrival.bytes.size() - arrival.count, MSG_DONTWAIT);
  if (bytes < 0) return errno == EAGAIN || errno == EINTR;
  if (bytes == 0) return false;
  arrival.count += static_cast<size_t>(bytes);
  if (!may_be_hello(std::span(arrival.bytes).first(arrival.count))) return false;
  if (arrival.count < arrival.bytes.size()) return true;
  TcpHello hello;
  switch (parse(arrival.bytes, hello)) {
    case HelloFault::none:
      break;
    case HelloFault::other_version:
      log(LogLevel::warning, "a software HCA at " + text_of(remote_gid(arrival.socket)) +
                                 " speaks another version: use the same rdmatx on both sides");
      return false;
    default:
      return false;
  }
  if (!equal(remote_gid(arrival.socket), gid_from(hello.source)) ||
      !equal(local_gid(arrival.socket), gid_from(hello.destination)) ||
      !instance_.with(hello.responder, [](QueuePair&) {}))
    return false;
  const auto waiting = static_cast<size_t>(
      std::count_if(arrivals_.begin(), arrivals_.end(), [](auto& entry) { return entry.second.hello; }));
  if (waiting >= max_waiting) return false;
  // Who comes again has given up the earlier try.
  std::erase_if(arrivals_, [&](auto& entry) {
    const auto& earlier = entry.second.hello;
    return earlier && &entry.second != &arrival && earlier->requester == hello.requester &&
           earlier->responder == hello.responder && earlier->stream == hello.stream &&
           earlier->source == hello.source;
  });
  arrival.hello = hello;
  return true;
}

void TcpPort::admit_all() {
  std::vector<uint64_t> complete;
  for (auto& [token, arrival] : arrivals_)
    if (arrival.hello && arrival.hello->stream == 0) complete.push_back(token);
  for (const uint64_t token : complete) admit(token);
}

/// Hands the connections of one requester to their queue pair, all its streams together.
bool TcpPort::admit(uint64_t token) {
  const TcpHello hello = *arrivals_.at(token).hello;
  std::vector<uint64_t> tokens(hello.streams, 0);
  size_t present = 0;
  for (auto& [other, arrival] : arrivals_) {
    if (!arrival.hello) continue;
    TcpHello first = *arrival.hello;
    first.stream = 0;
    if (first != hello) continue;
    tokens[arrival.hello->stream] = other;
    ++present;
  }
  if (present < hello.streams) return false;
  bool admitted = false;
  instance_.with(hello.responder, [&](QueuePair& qp) {
    const std::lock_guard lock(qp.mutex);
    if (judge(qp, hello) != Verdict::admitted) return;
    const bool stale = std::any_of(tokens.begin(), tokens.end(),
                                   [&](uint64_t each) { return gave_up(arrivals_.at(each).socket); });
    admitted = true;  // or turned away: either way it waits no longer
    if (stale) return;
    ResponseFrame welcome;
    welcome.kind = ResponseKind::welcome;
    welcome.message = hello.responder;
    tcp_leave_inbound(qp);
    qp.tcp->inbound_over = false;
    for (const uint64_t each : tokens) {
      qp.tcp->inbound.push_back(adopt(std::move(arrivals_.at(each).socket)));
      qp.tcp->inbound.back()->push(welcome);
    }
  });
  if (!admitted) return false;
  for (const uint64_t each : tokens) arrivals_.erase(each);
  return true;
}

}  // namespace rdmatx::soft
