#pragma once

#include <memory>
#include <string>

#include "messaging/connection.hpp"
#include "messaging/handshake.hpp"

namespace rdmatx {

/// One side of a connection in the making: a queue pair that is not connected yet, and what the handshake
/// tells. Owns the channel until finish() hands it on; dropped before that, it leaves nothing behind. Used by
/// one thread.
class Endpoint {
 public:
  /// Throws VerbsError, UnavailableError.
  explicit Endpoint(std::shared_ptr<ContextResources> resources);

  /// This side's hello.
  const HandshakeRecord& record() const noexcept { return record_; }
  /// The listener's part: chooses the addresses, connects the queue pair, and returns the accept record to
  /// send. Throws UnavailableError, whose text the peer is told, where the two cannot be connected.
  HandshakeRecord answer(const HandshakeRecord& hello);
  /// The connector's part, with the listener's accept record.
  void conclude(const HandshakeRecord& accept);
  std::shared_ptr<Connection> finish(BootstrapSocket socket, std::string peer);

 private:
  void connect(const HandshakeRecord& peer, size_t local, size_t remote, std::string reason);
  void check_peer(const HandshakeRecord& peer) const;

  std::shared_ptr<ContextResources> resources_;
  std::unique_ptr<Channel> channel_;
  HandshakeRecord record_;
  Path path_;
  SlotCounts peer_slots_;
};

/// Connects to a listener: the whole handshake, bounded by the deadline. With a secret both sides prove it
/// before either tells of its queue pair. Throws AuthenticationError, PeerLostError, UnavailableError,
/// TimeoutError.
std::shared_ptr<Connection> establish(const std::shared_ptr<ContextResources>& resources,
                                      const std::string& address, const SharedSecret& secret,
                                      const Deadline& deadline);

}  // namespace rdmatx
