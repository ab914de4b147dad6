#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "rdma/address.hpp"
#include "rdma/completion_queue.hpp"
#include "rdma/protection_domain.hpp"
#include "rdma/shared_receive_queue.hpp"
#include "rdma/work.hpp"

namespace rdmatx {

/// How much a queue pair holds. Asked for at creation; the queue pair may have more.
struct QueuePairCapabilities {
  uint32_t max_send_requests = 64;
  uint32_t max_receive_requests = 64;
  uint32_t max_send_elements = 1;
  uint32_t max_receive_elements = 1;
  uint32_t max_inline_bytes = 0;
};

/// The way to the peer's port.
struct PathAttributes {
  Gid destination_gid;
  uint8_t source_gid_index = 0;
  uint16_t destination_lid = 0;
  uint8_t port = 1;
  /// Whether packets carry the GID: always on Ethernet, between subnets on InfiniBand.
  bool is_global = true;
  uint8_t hop_limit = 64;
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  uint32_t flow_label = 0;
};

/// What ibv_modify_qp(3) can set and ibv_query_qp(3) tells. Only what is set is passed on: the mask of the
/// verb is made from it, so a missing or superfluous attribute is the caller's to find out.
struct QueuePairAttributes {
  std::optional<QueuePairState> state;
  std::optional<QueuePairState> current_state;
  std::optional<Access> access;
  std::optional<uint16_t> pkey_index;
  std::optional<uint8_t> port;
  std::optional<PathAttributes> path;
  /// Bytes: 256 … 4096.
  std::optional<uint32_t> path_mtu;
  std::optional<uint32_t> destination_queue_pair_number;
  std::optional<uint32_t> receive_packet_sequence_number;
  std::optional<uint32_t> send_packet_sequence_number;
  /// Reads and atomics outstanding as initiator, and as responder.
  std::optional<uint8_t> max_rd_atomic;
  std::optional<uint8_t> max_dest_rd_atomic;
  /// Code of the delay a sender is told to wait where no receive is posted: 0 … 31, 0 is 655 ms, 12 is 0.64
  /// ms.
  std::optional<uint8_t> min_rnr_timer;
  /// 4.096 µs × 2^timeout until a lost packet is sent again; 0 waits for ever.
  std::optional<uint8_t> timeout;
  std::optional<uint8_t> retry_count;
  /// 7 retries for ever.
  std::optional<uint8_t> rnr_retry;

  std::string text() const;
};

struct QueuePairStatus {
  QueuePairAttributes attributes;
  QueuePairCapabilities capabilities;
};

/// How connect() sets a queue pair up. The codes are those of QueuePairAttributes.
struct ConnectOptions {
  Access access = Access::local_write | Access::remote_write | Access::remote_read | Access::remote_atomic;
  /// 0: the lesser of both ports' MTU; else bytes, and still no more than that.
  uint32_t path_mtu = 0;
  /// 14 is 67 ms; with 7 retries a dead peer shows in about half a second, more where the device stretches
  /// it.
  uint8_t timeout = 14;
  uint8_t retry_count = 7;
  uint8_t rnr_retry = 7;
  uint8_t min_rnr_timer = 12;
  /// Clipped to what the device can.
  uint8_t max_rd_atomic = 16;
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  uint8_t hop_limit = 64;
};

struct QueuePairOptions {
  QueuePairCapabilities capabilities;
  /// Every send work request completes, signaled or not.
  bool signal_all = false;
  /// Where set, receives come from here and the queue pair has no receive queue of its own.
  std::shared_ptr<SharedReceiveQueue> shared_receive_queue;
};

/// Owns a reliable-connected queue pair. Posting and modifying may be done from any thread; what several post
/// at once goes out in some order. Nothing is ever retried here: after a failed completion the queue pair is
/// in the error state and flushes.
class RDMATX_API QueuePair {
 public:
  static std::shared_ptr<QueuePair> create(std::shared_ptr<ProtectionDomain> domain,
                                           std::shared_ptr<CompletionQueue> send_queue,
                                           std::shared_ptr<CompletionQueue> receive_queue,
                                           const QueuePairOptions& options = {});

  uint32_t number() const noexcept;
  /// What it was created with; at least what was asked for.
  const QueuePairCapabilities& capabilities() const noexcept { return capabilities_; }
  const std::shared_ptr<ProtectionDomain>& protection_domain() const noexcept { return domain_; }
  const std::shared_ptr<CompletionQueue>& send_queue() const noexcept { return send_queue_; }
  const std::shared_ptr<CompletionQueue>& receive_queue() const noexcept { return receive_queue_; }

  /// What the peer needs to connect to this one. The packet sequence number was drawn at creation.
  Address local_address(int port = 1, int gid_index = 0) const;

  /// Passes exactly the attributes that are set. Throws VerbsError naming the transition and the attributes.
  void modify(const QueuePairAttributes& attributes);
  void to_reset();
  /// From now on receives may be posted.
  void to_init(int port, Access access);
  void to_ready_to_receive(int port, int gid_index, const Address& remote,
                           const ConnectOptions& options = {});
  void to_ready_to_send(const ConnectOptions& options = {});
  /// Flushes all work: each request still posted completes as `flushed`.
  void to_error();
  /// From RESET or INIT to ready-to-send. The peer does the same with our local_address(); it may receive and
  /// answer before we are through.
  void connect(int port, int gid_index, const Address& remote, const ConnectOptions& options = {});

  QueuePairStatus query() const;
  /// As the device sees it now: it may have failed since it was last looked at.
  QueuePairState state() const;

  /// Posts all, in order, or throws VerbsError that says which one was refused and why; those before it are
  /// posted and will complete.
  void post_send(std::span<SendWork> work);
  void post_send(SendWork& work) { post_send(std::span(&work, 1)); }
  void post_receive(std::span<ReceiveWork> work);
  void post_receive(ReceiveWork& work) { post_receive(std::span(&work, 1)); }

 private:
  QueuePair(std::shared_ptr<ProtectionDomain> domain, std::shared_ptr<CompletionQueue> send_queue,
            std::shared_ptr<CompletionQueue> receive_queue, const QueuePairOptions& options);

  std::shared_ptr<ProtectionDomain> domain_;
  std::shared_ptr<CompletionQueue> send_queue_;
  std::shared_ptr<CompletionQueue> receive_queue_;
  std::shared_ptr<SharedReceiveQueue> shared_receive_queue_;
  uint32_t packet_sequence_number_;
  QueuePairCapabilities capabilities_;
  QueuePairHandle handle_;
};

}  // namespace rdmatx
