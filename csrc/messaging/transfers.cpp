#include "messaging/transfers.hpp"

namespace rdmatx {
namespace {

template <typename Part>
std::vector<uint64_t> sizes_of(const std::vector<Part>& parts) {
  std::vector<uint64_t> sizes;
  sizes.reserve(parts.size());
  for (const Part& part : parts) sizes.push_back(part.bytes);
  return sizes;
}

}  // namespace

Transfer::Transfer(std::shared_ptr<Request> request, const TransferLimits& limits, uint64_t finish_id)
    : request_(std::move(request)),
      local_sizes_(sizes_of(request_->parts())),
      remote_sizes_(sizes_of(request_->remote())),
      finish_id_(finish_id),
      plan_(local_sizes_, remote_sizes_, limits, direction_of(request_->kind())) {}

bool Transfer::post(Channel& channel, bool may_notify) {
  if (is_atomic(request_->kind())) return post_atomic(channel);
  const auto& remote = request_->remote();
  while (!plan_.finished() && channel.can_post_piece()) {
    PlannedWork piece = *plan_.next();
    // A rendezvous ends with its finish message, whose completion covers every piece before it.
    if (piece.last && finish_id_ != 0) piece.signalled = false;
    std::optional<uint32_t> immediate;
    if (piece.last && may_notify) immediate = request_->notification();
    notified_ = immediate.has_value();
    const RemotePart to = remote.empty() ? RemotePart{} : remote[piece.remote_part];
    request_->add_outstanding();
    channel.post_piece(request_, piece, to.address + piece.remote_offset, to.key, immediate);
  }
  return plan_.finished();
}

bool Transfer::post_atomic(Channel& channel) {
  if (!channel.can_post_atomic()) return false;
  request_->add_outstanding();
  channel.post_atomic(request_, request_->remote().front().address, request_->remote().front().key);
  return true;
}

}  // namespace rdmatx
