#include "messaging/transfers.hpp"

#include <algorithm>

namespace rdmatx {
namespace {

template <typename Parts>
std::vector<uint64_t> sizes_of(const Parts& parts) {
  std::vector<uint64_t> sizes;
  sizes.reserve(parts.size());
  for (const auto& part : parts) sizes.push_back(part.bytes);
  return sizes;
}

}  // namespace

Transfer::Transfer(std::shared_ptr<Request> request, const TransferLimits& limits,
                   std::vector<TransferRange> ranges)
    : request_(std::move(request)),
      limits_(limits),
      local_sizes_(sizes_of(request_->parts())),
      remote_sizes_(sizes_of(request_->remote())),
      ranges_(std::move(ranges)) {
  if (request_->device()) limits_.inline_bytes = 0;  // no processor may look at a GPU's memory
  if (ranges_.empty()) ranges_ = {{0, request_->capacity()}};
}

bool Transfer::post(Lanes& lanes, bool may_notify) {
  if (!lanes.messages()) return false;
  if (is_atomic(request_->kind())) return post_atomic(lanes);
  for (; range_ < ranges_.size(); ++range_, plan_.reset())
    if (!post_range(lanes, may_notify)) return false;
  return true;
}

TransferLimits Transfer::piece_limits(const Lanes& lanes) const {
  TransferLimits limits = limits_;
  // Few enough pieces that each is worth its work request, and enough that no rail waits for another at the
  // end.
  const uint64_t share = request_->capacity() / (4 * lanes.alive());
  if (request_->device())
    limits.max_message_bytes = std::min(limits.max_message_bytes, request_->device()->piece_bytes());
  if (striped_)
    limits.max_message_bytes = std::min(limits.max_message_bytes,
                                        std::clamp<uint64_t>(share, ProtocolSizes::stripe_bytes, 8u << 20));
  return limits;
}

bool Transfer::post_range(Lanes& lanes, bool may_notify) {
  if (!plan_) {
    striped_ = lanes.stripes(request_->capacity());
    plan_.emplace(local_sizes_, remote_sizes_, piece_limits(lanes), direction_of(request_->kind()),
                  ranges_[range_]);
  }
  while (held_ || !plan_->finished()) {
    const size_t chosen = striped_ ? lanes.choose(ProtocolSizes::stripe_bytes) : lanes.message_lane();
    if (chosen == lanes.size() || !lanes[chosen].channel->can_post_piece()) return false;
    PlannedWork piece = held_ ? *held_ : *plan_->next();
    held_.reset();
    if (request_->device() && piece.offset + piece.bytes > request_->device()->ready_bytes()) {
      held_ = piece;
      return false;
    }
    const bool last = piece.last && range_ + 1 == ranges_.size();
    if (striped_ || (piece.last && !last)) {
      piece.signalled = true;  // the end of the transfer is not seen on this rail
      if (chosen != lanes.message_lane()) request_->set_scattered();
    } else if (last && request_->finish_id() != 0 && !request_->scattered()) {
      piece.signalled = false;  // the finish message's completion covers every piece before it
    }
    std::optional<uint32_t> immediate;
    if (last && may_notify && !request_->scattered()) immediate = request_->notification();
    notified_ = immediate.has_value();
    request_->add_outstanding();
    lanes[chosen].stats.bytes += piece.bytes;
    lanes[chosen].channel->post_piece(request_, piece, chosen, immediate);
  }
  return true;
}

bool Transfer::post_atomic(Lanes& lanes) {
  Channel& channel = *lanes.messages();
  if (!channel.can_post_atomic()) return false;
  request_->add_outstanding();
  channel.post_atomic(request_, lanes.message_lane());
  return true;
}

}  // namespace rdmatx
