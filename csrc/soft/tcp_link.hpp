#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "soft/tcp_stream.hpp"

namespace rdmatx::soft {

class TcpListener;
struct QueuePair;

/// What a queue pair has instead of channels where its peer is reached over TCP: connections that it opened
/// for its own requests, and those that its peer opened. Two apart, so that a message that waits for a
/// receive does not hold up the answers to the other side's reads. Guarded by the queue pair's mutex.
struct TcpLink {
  ibv_gid source{}, destination{};
  std::shared_ptr<TcpListener> listener;  // kept listening for as long as a queue pair needs it

  // As requester.
  TcpStreams outbound;         // empty until the responder bade welcome
  bool outbound_over = false;  // the responder has left, or is lost
  uint64_t acknowledged = 0;   // the last message that was executed
  uint64_t refused = 0;        // the message that failed, 0 for none
  ibv_wc_status refused_status = IBV_WC_SUCCESS;
  uint32_t reads_outstanding = 0;  // and atomics
  uint32_t idle_looks = 0;
  uint64_t no_way_since_ns = 0;  // connecting has failed ever since

  // As responder.
  TcpStreams inbound;
  bool inbound_used = false;  // a request has come: nobody else is let in
  bool inbound_over = false;
  uint64_t told = 0;                // acknowledged last
  bool begun = false;               // a piece of the current message has come
  Record current{};                 // what that piece said of the message
  uint64_t arrived = 0;             // bytes of it, in whole pieces
  bool answer_invalid = false;      // the memory of a read's answer was taken away meanwhile
  uint64_t not_ready_since_ns = 0;  // a message waits for a receive

  // As either.
  uint64_t lost_since_ns = 0;        // the peer's process or host is gone
  uint64_t unanswered_since_ns = 0;  // the peer's host has not answered ever since

  bool reachable() const noexcept { return !outbound.empty() && !outbound_over; }
};

// Called under the queue pair's mutex, as the functions of engine.hpp are.

/// tcp_requester.cpp: takes in what the responder answered. True if anything moved.
bool tcp_take_responses(QueuePair& qp);
/// Starts posted sends and hands them to the sockets, up to `budget` bytes.
bool tcp_send_requests(QueuePair& qp, uint64_t budget);

/// tcp_responder.cpp: the counterpart of progress_responses.
bool tcp_serve(QueuePair& qp);
/// Tells the requester that the current message failed.
void tcp_refuse(QueuePair& qp, ibv_wc_status status);

/// tcp_link.cpp: has the wire's thread woken when anything comes.
void tcp_arm(QueuePair& qp);
/// The opposite, for whoever polls. True where it was armed.
bool tcp_disarm(QueuePair& qp);
/// Notes that a stream ended without a goodbye.
void tcp_lose(QueuePair& qp);
/// Fails the queue pair once its lost peer has nothing more to tell. True where it did.
bool tcp_fail_if_lost(QueuePair& qp);
/// Leaves both directions: what was answered is still told, then goodbye.
void tcp_leave(QueuePair& qp);
void tcp_leave_outbound(QueuePair& qp);
void tcp_leave_inbound(QueuePair& qp);
/// Whether requests wait for room in a socket.
bool tcp_has_unsent(const QueuePair& qp);
/// Whether a timer runs for this link.
bool tcp_timer_runs(const QueuePair& qp);
/// Whether the peer's host has been silent for too long with work outstanding; looked at now and then.
void tcp_check_host(QueuePair& qp, uint64_t now);

}  // namespace rdmatx::soft
