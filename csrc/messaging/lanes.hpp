#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messaging/channel.hpp"
#include "messaging/deadline.hpp"
#include "messaging/path.hpp"
#include "messaging/registration_cache.hpp"

namespace rdmatx {

/// One device of a context, and what is made of it. Immutable after construction.
struct Rail {
  std::shared_ptr<ProtectionDomain> domain;
  std::shared_ptr<CompletionChannel> events;
  std::shared_ptr<RegistrationCache> registrations;

  const std::shared_ptr<Device>& device() const noexcept { return domain->device(); }
};

/// Bytes and errors of one rail of a connection.
struct RailStats {
  uint64_t bytes = 0;       ///< of transfers over it, by this side
  uint64_t errors = 0;      ///< how often it failed
  uint64_t recoveries = 0;  ///< how often it came back
  bool alive = false;
  std::string path;
};

/// A rail of a connection: one device here, one at the peer, and the queue pair between them.
struct Lane {
  enum class State : uint8_t {
    alive,
    retiring,  ///< failed, the peer was told, and has not yet told what it has seen of ours
    down,
  };

  Rail rail;
  size_t remote_rail = 0;  ///< the peer's, by its place in its context
  Path path;
  std::unique_ptr<Channel> channel;  // null while it is down
  uint8_t max_rd_atomic = 0;
  uint64_t weight = 1;  ///< how fast it is, against the others
  State state = State::alive;
  std::optional<uint64_t> peer_has_seen;     // messages of ours that the peer got over it
  std::unique_ptr<Channel> replacement;      // offered to the peer
  Deadline::Clock::time_point next_attempt;  // of bringing it back
  std::chrono::milliseconds pause{0};
  RailStats stats;

  bool alive() const noexcept { return state == State::alive; }
};

/// The rails of one connection. Messages go over one of them, in order; large transfers over all that live.
/// No lock of its own: its connection's.
class Lanes {
 public:
  explicit Lanes(std::vector<Lane> lanes);

  size_t size() const noexcept { return lanes_.size(); }
  Lane& operator[](size_t index) noexcept { return lanes_[index]; }
  const Lane& operator[](size_t index) const noexcept { return lanes_[index]; }
  auto begin() noexcept { return lanes_.begin(); }
  auto end() noexcept { return lanes_.end(); }
  auto begin() const noexcept { return lanes_.begin(); }
  auto end() const noexcept { return lanes_.end(); }

  /// The rail that messages go over; null while it has failed and the next is not settled.
  Channel* messages() const noexcept {
    return lanes_[first_].alive() ? lanes_[first_].channel.get() : nullptr;
  }
  size_t message_lane() const noexcept { return first_; }
  /// Messages go over the first rail that lives from now on.
  void choose_message_lane() noexcept;
  /// Where the next piece of a transfer over all rails goes: to the rail that would be done first. The number
  /// of lanes where none has room.
  size_t choose(uint64_t bytes) const noexcept;
  size_t alive() const noexcept;
  /// Whether a transfer of this many bytes goes over all rails.
  bool stripes(uint64_t bytes) const noexcept {
    return bytes >= 2 * ProtocolSizes::stripe_bytes && alive() > 1;
  }
  /// Whether another rail lives: where none does, this one's failure is the connection's.
  bool any_left_but(size_t index) const noexcept;
  /// The limits that hold on every rail.
  const TransferLimits& limits() const noexcept { return limits_; }
  /// Whether everything that was posted has completed.
  bool idle() const noexcept;
  /// Whether something that was posted for a request has not completed.
  bool has_requests() const noexcept;
  RailDomainList domains() const;

 private:
  std::vector<Lane> lanes_;
  size_t first_ = 0;
  TransferLimits limits_;
};

}  // namespace rdmatx
