#include "soft/tcp_link.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/tcp_port.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {
namespace {

/// What a peer that is lost on one connection may still have to tell on another is waited for this long.
constexpr uint64_t last_words_ns = 100'000'000;

TcpPort& port_of(const QueuePair& qp) {
  return *qp.context->instance->wire().tcp();
}

/// Ends the streams: what is queued without payload goes out, then goodbye.
template <class Goodbye>
void leave(QueuePair& qp, TcpStreams& streams, const Goodbye& goodbye, bool begun_only) {
  for (const auto& stream : streams) {
    if (stream->closed()) continue;
    std::vector<std::byte> unsent;
    // A payload that is under way cannot be finished: the other side sees the connection break.
    if (stream->take_unsent(unsent, begun_only)) {
      const auto bytes = encode(goodbye);
      unsent.insert(unsent.end(), bytes.begin(), bytes.end());
      port_of(qp).linger(stream->take_socket(), std::move(unsent));
    } else {
      stream->close();
    }
  }
  streams.clear();
}

/// Whether the other side's kernel leaves unanswered what this one's has sent.
bool unanswered(const TcpStream& stream) {
  if (stream.closed()) return false;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(stream.socket().get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  // A peer that is stopped or busy still has a kernel that acknowledges, be it with a window of zero.
  return (info.tcpi_retransmits > 0 || info.tcpi_probes > 0) && info.tcpi_last_ack_recv > 500;
}

bool any_open(const TcpStreams& streams) {
  return std::any_of(streams.begin(), streams.end(), [](const auto& stream) { return !stream->closed(); });
}

}  // namespace

void tcp_arm(QueuePair& qp) {
  const int epoll = port_of(qp).epoll();
  for (const auto& stream : qp.tcp->outbound) stream->arm(epoll);
  for (const auto& stream : qp.tcp->inbound) stream->arm(epoll);
}

bool tcp_disarm(QueuePair& qp) {
  bool armed = false;
  for (const auto& stream : qp.tcp->outbound) armed |= stream->disarm();
  for (const auto& stream : qp.tcp->inbound) armed |= stream->disarm();
  return armed;
}

void tcp_lose(QueuePair& qp) {
  if (qp.tcp->lost_since_ns == 0) qp.tcp->lost_since_ns = now_ns();
}

bool tcp_fail_if_lost(QueuePair& qp) {
  if (!qp.tcp || qp.tcp->lost_since_ns == 0) return false;
  const int state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD) return false;
  const TcpLink& link = *qp.tcp;
  const bool last_words = any_open(link.outbound) || any_open(link.inbound);
  if (last_words && link.not_ready_since_ns == 0 && now_ns() - link.lost_since_ns < last_words_ns)
    return false;
  raise_async_event(qp.context, IBV_EVENT_QP_FATAL, &qp.base);
  enter_error(qp, IBV_WC_RETRY_EXC_ERR);
  return true;
}

void tcp_leave_outbound(QueuePair& qp) {
  RequestFrame goodbye;
  goodbye.goodbye = true;
  if (!qp.tcp->outbound.empty()) qp.tcp->outbound_over = true;
  leave(qp, qp.tcp->outbound, goodbye, true);
}

void tcp_leave_inbound(QueuePair& qp) {
  TcpLink& link = *qp.tcp;
  if (!link.inbound.empty()) {
    link.inbound_over = true;
    if (qp.messages_received > link.told) {
      ResponseFrame last;
      last.message = link.told = qp.messages_received;
      link.inbound[0]->push(last);
    }
  }
  link.not_ready_since_ns = 0;
  ResponseFrame goodbye;
  goodbye.kind = ResponseKind::goodbye;
  leave(qp, link.inbound, goodbye, false);
}

void tcp_leave(QueuePair& qp) {
  tcp_leave_inbound(qp);  // first: a peer whose own requests break off looks here for the reason
  tcp_leave_outbound(qp);
  qp.tcp->outbound_over = qp.tcp->inbound_used = true;  // nobody is let in, or connected to, any more
  qp.tcp->lost_since_ns = 0;
}

bool tcp_has_unsent(const QueuePair& qp) {
  return std::any_of(qp.tcp->outbound.begin(), qp.tcp->outbound.end(),
                     [](const auto& stream) { return !stream->outgoing.empty(); });
}

bool tcp_timer_runs(const QueuePair& qp) {
  const int state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD) return false;
  return qp.tcp->lost_since_ns != 0 || qp.tcp->not_ready_since_ns != 0;
}

void tcp_check_host(QueuePair& qp, uint64_t now) {
  TcpLink& link = *qp.tcp;
  const auto silent = [](const auto& stream) { return unanswered(*stream); };
  const bool waits = std::any_of(link.outbound.begin(), link.outbound.end(), silent) ||
                     std::any_of(link.inbound.begin(), link.inbound.end(), silent);
  if (!waits) {
    link.unanswered_since_ns = 0;
    return;
  }
  if (link.unanswered_since_ns == 0) link.unanswered_since_ns = now;
  if (now - link.unanswered_since_ns < port_of(qp).peer_timeout_ns()) return;
  for (const auto& stream : link.outbound) stream->close();
  for (const auto& stream : link.inbound) stream->close();
  tcp_lose(qp);
  tcp_fail_if_lost(qp);
}

QueuePair::QueuePair(uint32_t max_receives, uint32_t receive_sges) : receives(max_receives, receive_sges) {}
QueuePair::~QueuePair() = default;

}  // namespace rdmatx::soft
