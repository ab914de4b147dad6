#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "messaging/lanes.hpp"
#include "messaging/planner.hpp"
#include "messaging/protocol.hpp"

namespace rdmatx {

inline TransferDirection direction_of(RequestKind kind) noexcept {
  return kind == RequestKind::read ? TransferDirection::read : TransferDirection::write;
}

/// One rendezvous write or one-sided operation, on its way into the send queues.
class Transfer {
 public:
  /// The parts of the request here and at the peer have the same number of bytes together. `ranges` are the
  /// bytes to move; none are all.
  Transfer(std::shared_ptr<Request> request, const TransferLimits& limits,
           std::vector<TransferRange> ranges = {});
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Posts pieces while the rails have room; true once all are posted. `may_notify`: the last piece may
  /// carry the request's notification.
  bool post(Lanes& lanes, bool may_notify);
  /// More of it has to be moved (again).
  void add_ranges(const std::vector<TransferRange>& ranges) {
    ranges_.insert(ranges_.end(), ranges.begin(), ranges.end());
  }
  /// The notification went with the last piece.
  bool notified() const noexcept { return notified_; }
  const std::shared_ptr<Request>& request() const noexcept { return request_; }

 private:
  bool post_atomic(Lanes& lanes);
  bool post_range(Lanes& lanes, bool may_notify);
  TransferLimits piece_limits(const Lanes& lanes) const;

  std::shared_ptr<Request> request_;
  TransferLimits limits_;
  std::vector<uint64_t> local_sizes_;
  std::vector<uint64_t> remote_sizes_;
  std::vector<TransferRange> ranges_;
  size_t range_ = 0;
  std::optional<TransferPlan> plan_;  // of the range at hand
  std::optional<PlannedWork> held_;   // its next piece, while a GPU has not copied its bytes yet
  bool striped_ = false;
  bool notified_ = false;
};

}  // namespace rdmatx
