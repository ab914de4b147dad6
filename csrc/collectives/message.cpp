#include "collectives/message.hpp"

#include <utility>

#include "base/error.hpp"

namespace rdmatx {

Message::Message(Kind kind, int peer, uint64_t tag, OperationMemory memory, double timeout)
    : Pending(timeout), kind_(kind), tag_(tag), deadline_(timeout), peer_(peer), memory_(std::move(memory)) {}

std::string Message::description() const {
  const std::string whom = peer_ == any_rank ? "any rank" : "rank " + std::to_string(peer_);
  return std::string(kind_ == Kind::send ? "a send to " : "a recv from ") + whom + " with tag " +
         std::to_string(tag_);
}

void Message::connect(Members& members) {
  if (request_) return;
  if (peer_ != any_rank) return members.connect(peer_, deadline_.left(timeout()));
  for (int rank = 0; rank < members.rank(); ++rank) members.connect(rank, deadline_.left(timeout()));
}

bool Message::advance(Members& members) {
  const bool starts = !request_;
  if (starts && !start(members)) return false;
  if (!request_->finished()) return starts;
  try {
    request_->check();
  } catch (const SizeMismatchError&) {
    fail(std::current_exception());
    return true;
  }
  bytes_ = request_->bytes();
  succeed();
  return true;
}

bool Message::start(Members& members) {
  if (peer_ == any_rank && !find_sender(members)) return false;
  const auto& connection = members.connection(peer_);
  if (!connection) return false;
  request_ = kind_ == Kind::send ? members.send(peer_, memory_, tag_) : connection->ireceive(memory_, tag_);
  return true;
}

// Nobody else receives messages of such tags from these connections: what a probe shows is still there.
bool Message::find_sender(Members& members) {
  const int world = members.world();
  bool all_gone = true;
  for (int i = 0; i < world; ++i) {
    const int rank = (looked_at_ + i) % world;
    if (rank == members.rank()) continue;
    const auto& connection = members.connection(rank);
    try {
      if (connection && connection->iprobe(tag_)) {
        peer_ = rank;
        return true;
      }
      all_gone = false;
    } catch (const PeerLostError&) {
      if (!members.has_left(rank)) throw;
    }
  }
  looked_at_ = (looked_at_ + 1) % world;
  if (all_gone) throw PeerLostError("every other rank has closed the group", "");
  return false;
}

bool Message::withdraw(Members& members) {
  if (!request_) return true;
  const auto& connection = members.connection(peer_);
  return connection && connection->withdraw(request_);
}

void Message::release() noexcept {
  request_.reset();
  memory_ = {};
}

}  // namespace rdmatx
