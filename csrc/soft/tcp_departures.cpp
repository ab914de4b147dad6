// Connections that this side makes, for the requests of a queue pair; see tcp_port.hpp.

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/tcp_link.hpp"
#include "soft/tcp_port.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {
namespace {

constexpr uint64_t first_pause_ns = 500'000, longest_pause_ns = 50'000'000;

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

ibv_gid gid_from(const TcpHello::Address& address) {
  ibv_gid gid{};
  std::memcpy(gid.raw, address.data(), address.size());
  return gid;
}

}  // namespace

void TcpPort::connect(const QueuePair& qp) {
  Departure departure;
  TcpHello& hello = departure.hello;
  hello.requester = qp.base.qp_num;
  hello.responder = qp.attributes.dest_qp_num;
  hello.request_psn = qp.attributes.sq_psn;
  hello.reply_psn = qp.attributes.rq_psn;
  std::memcpy(hello.source.data(), qp.tcp->source.raw, hello.source.size());
  std::memcpy(hello.destination.data(), qp.tcp->destination.raw, hello.destination.size());
  hello.streams = static_cast<uint16_t>(streams_);
  departure.incarnation = qp.incarnation;
  departure.pause_ns = first_pause_ns;
  const std::lock_guard lock(mutex_);
  new_departures_.push_back(std::move(departure));
}

bool TcpPort::still_wanted(const Departure& departure) {
  bool wanted = false;
  instance_.with(departure.hello.requester, [&](QueuePair& qp) {
    const std::lock_guard lock(qp.mutex);
    const int state = qp.state.load();
    wanted = qp.tcp && qp.incarnation == departure.incarnation && qp.tcp->outbound.empty() &&
             !qp.tcp->outbound_over && (state == IBV_QPS_RTS || state == IBV_QPS_SQD);
  });
  return wanted;
}

void TcpPort::start(Departure& departure) {
  if (!still_wanted(departure)) {
    departure.over = true;
    return;
  }
  const uint32_t port = range_.first + (departure.hello.responder >> 16);
  const SocketAddress from = address_of(gid_from(departure.hello.source), 0);
  const SocketAddress to = address_of(gid_from(departure.hello.destination), static_cast<uint16_t>(port));
  departure.deadline_ns = now_ns() + peer_timeout_ns_;
  for (int i = 0; i < streams_; ++i) {
    Departure::Stream stream;
    stream.socket = Socket(socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int fd = stream.socket.get(), on = 1;
    if (port > range_.last || !stream.socket) return retry(departure, true);
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(fd, from.get(), from.size) != 0 ||
        (::connect(fd, to.get(), to.size) != 0 && errno != EINPROGRESS))
      return retry(departure, true);
    stream.token = next_token();
    watch(fd, stream.token, EPOLLOUT);
    departure.streams.push_back(std::move(stream));
  }
}

void TcpPort::proceed(Departure& departure, Departure::Stream& stream) {
  const int fd = stream.socket.get();
  if (stream.phase == Departure::Stream::connecting) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return retry(departure, true);
    tune(stream.socket);
    TcpHello hello = departure.hello;
    hello.stream = static_cast<uint16_t>(&stream - departure.streams.data());
    const auto bytes = encode(hello);
    if (send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
        static_cast<ssize_t>(bytes.size()))
      return retry(departure, true);
    stream.phase = Departure::Stream::greeting;
    watch(fd, stream.token, EPOLLIN);
    departure.deadline_ns = 0;  // the other side says how long it lets one wait, by closing
    instance_.with(departure.hello.requester, [](QueuePair& qp) {
      const std::lock_guard lock(qp.mutex);
      if (qp.tcp) qp.tcp->no_way_since_ns = 0;
    });
    return;
  }
  const ssize_t bytes =
      recv(fd, stream.bytes.data() + stream.count, stream.bytes.size() - stream.count, MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (bytes <= 0) return retry(departure, false);
  stream.count += static_cast<size_t>(bytes);
  if (stream.count < stream.bytes.size()) return;
  const auto frame = parse_response(stream.bytes);
  if (!frame || frame->kind != ResponseKind::welcome || frame->message != departure.hello.responder) {
    log(LogLevel::warning,
        "what listens at " + text_of(gid_from(departure.hello.destination)) +
            " is no software HCA of this version: is RDMATX_SOFT_PORTS the same on both hosts?");
    return retry(departure, true);
  }
  stream.phase = Departure::Stream::welcome;
  watch(fd, stream.token, EPOLLONESHOT);  // from now on the queue pair looks
  if (std::all_of(departure.streams.begin(), departure.streams.end(),
                  [](const auto& each) { return each.phase == Departure::Stream::welcome; }))
    finish(departure);
}

void TcpPort::finish(Departure& departure) {
  departure.over = true;
  const bool wanted = still_wanted(departure);
  if (!wanted) return abandon(departure);
  instance_.with(departure.hello.requester, [&](QueuePair& qp) {
    const std::lock_guard lock(qp.mutex);
    if (!qp.tcp || qp.incarnation != departure.incarnation || !qp.tcp->outbound.empty() ||
        qp.tcp->outbound_over)
      return;
    for (Departure::Stream& stream : departure.streams)
      qp.tcp->outbound.push_back(adopt(std::move(stream.socket)));
  });
  departure.streams.clear();
}

/// Closes what there is; the responder is told, where it may have been let in already.
void TcpPort::abandon(Departure& departure) {
  RequestFrame goodbye;
  goodbye.goodbye = true;
  const auto bytes = encode(goodbye);
  for (Departure::Stream& stream : departure.streams)
    if (stream.phase != Departure::Stream::connecting)
      linger(std::move(stream.socket), std::vector<std::byte>(bytes.begin(), bytes.end()));
  departure.streams.clear();
}

void TcpPort::retry(Departure& departure, bool no_way) {
  abandon(departure);
  const uint64_t now = now_ns();
  departure.next_ns = now + departure.pause_ns;
  departure.pause_ns = std::min(2 * departure.pause_ns, longest_pause_ns);
  departure.deadline_ns = 0;
  if (!no_way) return;
  instance_.with(departure.hello.requester, [&](QueuePair& qp) {
    const std::lock_guard lock(qp.mutex);
    if (qp.tcp && qp.incarnation == departure.incarnation && qp.tcp->no_way_since_ns == 0)
      qp.tcp->no_way_since_ns = now;
  });
}

}  // namespace rdmatx::soft
