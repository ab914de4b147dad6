#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/unique_fd.hpp"
#include "soft/channel.hpp"
#include "soft/peer.hpp"

namespace rdmatx::soft {

class Instance;
class TcpPort;

/// How two software HCAs of one host find each other, and the one background thread of the process.
///
/// Each instance listens on an abstract Unix socket named by its identity: no file, gone with the process.
/// A process that wants to reach another connects to it, they greet (each hands over its region table and its
/// doorbell), and then the first asks for what it needs: a queue pair's channel (claim → grant, when both
/// queue pairs name each other), or a segment of shared memory. The end of that socket, or of the process (a
/// pidfd, which a forked child cannot keep open), is the peer's death.
///
/// All sockets belong to the thread; other threads hand it requests and nudge it. The same thread drives
/// queue pairs that nobody polls (background.cpp).
class Wire {
 public:
  explicit Wire(Instance& instance);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// The peer with this identity, known already or to be connected to. Never null.
  std::shared_ptr<Peer> peer(uint64_t identity);
  /// Asks `peer` for the channel of its queue pair `remote` on behalf of the local queue pair `local`.
  void claim_channel(const std::shared_ptr<Peer>& peer, uint32_t remote, uint32_t local,
                     uint32_t incarnation);
  void request_segment(Peer& peer, uint64_t segment);
  /// Makes the thread look at once: a queue pair's state changed.
  void wake() noexcept;
  /// Makes sure that the thread looks within a millisecond or two: there is work that nobody may poll for.
  /// Free of charge while it is on patrol.
  void nudge() noexcept;
  /// The way to other hosts; null where the choice of wire excludes it.
  TcpPort* tcp() const noexcept { return tcp_.get(); }

 private:
  struct Message {
    uint32_t magic;
    uint16_t version;
    uint16_t kind;
    uint64_t identity;
    uint64_t values[4];
  };
  struct Parcel {  // a message with the descriptors that travel with it
    Message message;
    int descriptors[2] = {-1, -1};
    std::shared_ptr<void> owner;  // keeps the descriptors open until they are sent
  };
  struct Link {  // a connected socket; `peer` where this side connected, `identity` of the other once greeted
    UniqueFd socket;
    UniqueFd process;
    std::shared_ptr<Peer> peer;
    uint64_t identity = 0;
    bool greeted = false;
    std::deque<Parcel> unsent;
    std::vector<Parcel> after_greeting;
  };
  struct Claim {
    uint64_t link;  // key into links_, 0 for a claim of this process on itself
    uint64_t identity;
    uint32_t remote, local, incarnation;
  };
  struct Request {
    uint64_t identity;
    Message message;
  };

  void run();
  bool is_leaving();
  void handle_requests();
  void handle_event(uint64_t token);
  void accept_links();
  void connect_link(const std::shared_ptr<Peer>& peer);
  void receive(uint64_t key);
  void handle_message(uint64_t key, Link& link, const Message& message, UniqueFd (&descriptors)[2]);
  void greet(Link& link);
  void greeted(Link& link, const Message& message, UniqueFd (&descriptors)[2]);
  void send(Link& link, Parcel parcel);
  void flush(Link& link);
  void flush_all();
  void close_link(uint64_t key);
  void peer_gone(Peer& peer);
  void add_claim(uint64_t link, uint64_t identity, const Message& message);
  void grant_claims();
  std::shared_ptr<Channel> grant(const Claim& claim);
  void granted(uint64_t identity, const Message& message, std::shared_ptr<Channel> channel);
  void send_segment(Link& link, uint64_t segment);
  void forget_unused_peers();
  bool watch(int fd, uint64_t token) const;
  Message make(uint16_t kind, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) const;

  Instance& instance_;
  const uint64_t probe_token_;  // a peer reads it to see whether it may read this process
  UniqueFd listener_, doorbell_, epoll_;
  std::mutex mutex_;  // guards the two below
  std::unordered_map<uint64_t, std::shared_ptr<Peer>> peers_;
  std::vector<Request> requests_;

  // The thread's own.
  std::unordered_map<uint64_t, Link> links_;
  uint64_t next_link_ = 1;
  std::unique_ptr<TcpPort> tcp_;
  uint64_t leave_until_ns_ = 0;
  std::vector<Claim> claims_;

  enum Rest : int { awake, on_patrol, asleep };  // what the thread does between two looks
  std::atomic<int> rest_{awake};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// While others poll, or a timer runs, the thread looks again after this.
constexpr int patrol_ms = 1;

/// Drives what nobody polls. Returns how long the thread may sleep, in milliseconds: -1 until the doorbell
/// rings. Called by the wire's thread alone.
int drive_unpolled(Instance& instance);

}  // namespace rdmatx::soft
