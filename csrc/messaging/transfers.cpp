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

Transfer::Transfer(std::shared_ptr<Request> request, std::vector<RemotePart> remote,
                   const TransferLimits& limits, uint64_t finish_id)
    : request_(std::move(request)),
      remote_(std::move(remote)),
      local_sizes_(sizes_of(request_->parts())),
      remote_sizes_(sizes_of(remote_)),
      finish_id_(finish_id),
      plan_(local_sizes_, remote_sizes_, limits, direction_of(request_->kind())) {}

bool Transfer::post(Channel& channel) {
  while (!plan_.finished() && channel.can_post_piece()) {
    PlannedWork piece = *plan_.next();
    // A rendezvous ends with its finish message, whose completion covers every piece before it.
    if (piece.last && finish_id_ != 0) piece.signalled = false;
    const RemotePart* remote = remote_.empty() ? nullptr : &remote_[piece.remote_part];
    channel.post_piece(*request_, piece, remote ? remote->address + piece.remote_offset : 0,
                       remote ? remote->key : 0, piece.last && finish_id_ == 0 ? request_ : nullptr);
  }
  return plan_.finished();
}

}  // namespace rdmatx
