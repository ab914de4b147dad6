#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "messaging/bootstrap.hpp"

// Which handshake a listener gives up when more strangers knock than it takes; pure logic.

namespace rdmatx {

/// How far a stranger has come.
enum class HandshakeStage : uint8_t {
  silent,   ///< nothing whole was heard
  greeted,  ///< asked for a proof of the secret, and got it
  answered  ///< our queue pair is connected to what it said, and it was told so
};

struct HalfOpen {
  Source source{};
  HandshakeStage stage = HandshakeStage::silent;
  /// Since it came or since the last whole record: whoever trickles bytes is as quiet as who says nothing.
  double quiet_seconds = 0;
};

/// How long a stranger may be quiet before others have the place. Honest peers speak at once: their first
/// record is on its way when the connection is taken.
double patience_seconds(HandshakeStage stage) noexcept;

/// The place of the one to give up, nothing where those in question still deserve patience. Those that got no
/// answer yet go first; of these, those of the address that holds most places, so that the many sockets of
/// one address cost another none of its few; of these, the least advanced, then the quietest.
std::optional<size_t> who_makes_room(std::span<const HalfOpen> all);

}  // namespace rdmatx
