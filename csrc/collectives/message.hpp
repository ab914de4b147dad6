#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "collectives/members.hpp"
#include "collectives/pending.hpp"
#include "messaging/deadline.hpp"

namespace rdmatx {

/// A message between two ranks of a group, sent or received beside its collectives. Messages of one tag
/// between two ranks do not overtake each other.
///
/// Owns the caller's memory and its request until it ends.
class Message final : public Pending {
 public:
  enum class Kind : uint8_t { send, receive };
  static constexpr int any_rank = -1;
  /// Tags of the group's own messages begin here.
  static constexpr uint64_t tag_limit = uint64_t{1} << 63;

  Message(Kind kind, int peer, uint64_t tag, OperationMemory memory, double timeout);

  /// Of a receive from any rank: who sent it, once it has ended well.
  int peer() const noexcept { return peer_; }
  /// Bytes moved, once it has ended well.
  uint64_t bytes() const noexcept { return bytes_; }
  std::string description() const override;
  const char* name() const noexcept override { return kind_ == Kind::send ? "send" : "recv"; }

  // For the engine, under its lock.
  /// Sees to it that it can be started.
  void connect(Members& members);
  /// Starts it, or ends it where its request has; true where something was done. A message that does not fit
  /// ends it alone; throws what makes the group fail.
  bool advance(Members& members);
  bool late() const { return deadline_.passed(); }
  /// Takes it back, where no message has met it yet.
  bool withdraw(Members& members);

 private:
  bool start(Members& members);
  bool find_sender(Members& members);
  void release() noexcept override;

  const Kind kind_;
  const uint64_t tag_;
  const Deadline deadline_;
  int peer_;
  int looked_at_ = 0;  // of a receive from any rank: who is looked at first, in turn
  uint64_t bytes_ = 0;
  OperationMemory memory_;
  std::shared_ptr<Request> request_;
};

}  // namespace rdmatx
