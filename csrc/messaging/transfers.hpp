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

/// One rendezvous write, one-sided write or read, on its way into the send queue.
class Transfer {
 public:
  /// The parts of request and `remote` have the same number of bytes together. `finish_id` names the receive
  /// to be told once all is written; 0 for one-sided operations, which end with their last piece.
  Transfer(std::shared_ptr<Request> request, std::vector<RemotePart> remote, const TransferLimits& limits,
           uint64_t finish_id);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Posts pieces while the channel has room; true once all are posted.
  bool post(Channel& channel);
  const std::shared_ptr<Request>& request() const noexcept { return request_; }
  uint64_t finish_id() const noexcept { return finish_id_; }

 private:
  std::shared_ptr<Request> request_;
  std::vector<RemotePart> remote_;
  std::vector<uint64_t> local_sizes_;
  std::vector<uint64_t> remote_sizes_;
  uint64_t finish_id_;
  TransferPlan plan_;
};

}  // namespace rdmatx
