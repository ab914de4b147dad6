#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "messaging/channel.hpp"
#include "messaging/planner.hpp"
#include "messaging/protocol.hpp"

namespace rdmatx {

inline TransferDirection direction_of(RequestKind kind) noexcept {
  return kind == RequestKind::read ? TransferDirection::read : TransferDirection::write;
}

/// One rendezvous write or one-sided operation, on its way into the send queue.
class Transfer {
 public:
  /// The parts of the request here and at the peer have the same number of bytes together. `finish_id` names
  /// the receive to be told once all is written; 0 for one-sided operations, which end with their last piece.
  Transfer(std::shared_ptr<Request> request, const TransferLimits& limits, uint64_t finish_id);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Posts pieces while the channel has room; true once all are posted. `may_notify`: the last piece may
  /// carry the request's notification.
  bool post(Channel& channel, bool may_notify);
  /// The notification went with the last piece.
  bool notified() const noexcept { return notified_; }
  const std::shared_ptr<Request>& request() const noexcept { return request_; }
  uint64_t finish_id() const noexcept { return finish_id_; }

 private:
  bool post_atomic(Channel& channel);

  std::shared_ptr<Request> request_;
  std::vector<uint64_t> local_sizes_;
  std::vector<uint64_t> remote_sizes_;
  uint64_t finish_id_;
  TransferPlan plan_;
  bool notified_ = false;
};

}  // namespace rdmatx
