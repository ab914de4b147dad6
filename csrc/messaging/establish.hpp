#pragma once

#include <memory>
#include <string>

#include "messaging/connection.hpp"
#include "messaging/handshake.hpp"

namespace rdmatx {

/// One side of a connection in the making: queue pairs that are not connected yet, and what the handshake
/// tells. Owns the channels until finish() hands them on; dropped before that, it leaves nothing behind. Used
/// by one thread.
class Endpoint {
 public:
  explicit Endpoint(std::shared_ptr<ContextResources> resources);

  /// The connector's part: makes a queue pair of every rail, and returns this side's hello. Throws
  /// VerbsError, UnavailableError.
  const HandshakeRecord& offer();
  /// The listener's part: chooses rails and addresses, makes and connects their queue pairs, and returns the
  /// accept record to send. Throws UnavailableError, whose text the peer is told, where the two cannot be
  /// connected.
  HandshakeRecord answer(const HandshakeRecord& hello);
  /// The connector's part, with the listener's accept record.
  void conclude(const HandshakeRecord& accept);
  std::shared_ptr<Connection> finish(BootstrapSocket socket, std::string peer);

 private:
  void create_channel(size_t rail);
  void connect(const HandshakeRecord& peer, const std::vector<RailChoice>& choices);
  void check_peer(const HandshakeRecord& peer) const;

  std::shared_ptr<ContextResources> resources_;
  std::vector<std::unique_ptr<Channel>> channels_;  // by rail; null where it is not used
  HandshakeRecord record_;
  std::vector<Lane> lanes_;
  SlotCounts peer_slots_;
  bool verify_ = false;
  bool is_listener_ = false;
};

/// Connects to a listener: the whole handshake, bounded by the deadline. With a secret both sides prove it
/// before either tells of its queue pair. Throws AuthenticationError, PeerLostError, UnavailableError,
/// TimeoutError.
std::shared_ptr<Connection> establish(const std::shared_ptr<ContextResources>& resources,
                                      const std::string& address, const SharedSecret& secret,
                                      const Deadline& deadline);

}  // namespace rdmatx
