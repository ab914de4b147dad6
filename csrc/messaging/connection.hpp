#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/export.hpp"
#include "messaging/bootstrap.hpp"
#include "messaging/caller_lock.hpp"
#include "messaging/exchange.hpp"
#include "messaging/lanes.hpp"
#include "messaging/path.hpp"
#include "messaging/progress.hpp"
#include "messaging/remote_key.hpp"
#include "messaging/request.hpp"

namespace rdmatx {

/// What outlives the closing of a context: how its threads wait. Immutable after construction.
struct Waiting {
  std::shared_ptr<Progress> progress;
  double default_timeout = 60;
  int generation = process_generation();

  /// Nothing is the context's default.
  Deadline deadline(std::optional<double> seconds) const {
    return Deadline(seconds.value_or(default_timeout));
  }
};

/// What is made from a context is made of: given up when it is closed. Immutable after construction.
struct ContextResources {
  std::vector<Rail> rails;
  /// The last rail is used for peers of the same host alone, and the others for all others.
  bool last_is_for_same_host = false;
  Waiting waiting;
  /// Messages are to carry checksums.
  bool verify = false;
  /// How devices reach the memory of GPUs.
  std::shared_ptr<GpuRegistrar> gpus = std::make_shared<GpuRegistrar>(GpuDirect::automatic);

  const std::shared_ptr<Device>& device() const noexcept { return rails.front().device(); }
  const Rail* same_host_rail() const noexcept { return last_is_for_same_host ? &rails.back() : nullptr; }
};

/// What a handshake makes, and a connection is made of.
struct ConnectionParts {
  std::vector<Lane> lanes;
  BootstrapSocket socket;
  SlotCounts peer_slots;
  std::string peer;
  bool verify = false;       ///< messages carry checksums
  bool is_listener = false;  ///< this side accepted; the other one brings failed rails back
};

/// A connection to one peer: messages with tags, and reads and writes of its registered memory.
///
/// Owns the queue pair, its slots, the bootstrap socket, and every operation until it ends; each ends in
/// exactly one state. All functions may be called from any thread; one lock, never held while waiting.
/// Timeouts are in seconds, nothing is the context's default. After a failure every pending operation and
/// every later call throws that same failure. In a forked child every call throws UsageError, and nothing of
/// the parent's is touched.
class RDMATX_API Connection final : public Progressing, public std::enable_shared_from_this<Connection> {
 public:
  /// Of an endpoint that has finished its handshake (establish.hpp).
  static std::shared_ptr<Connection> create(const ContextResources& resources, ConnectionParts parts);
  ~Connection() override;

  /// Returns once the memory may be used again: for small messages at once, else when the peer has received
  /// it.
  void send(OperationMemory memory, uint64_t tag, std::optional<double> timeout);
  /// Bytes received. A receive that times out before its message came is withdrawn.
  uint64_t receive(OperationMemory memory, TagChoice tag, std::optional<double> timeout);
  std::shared_ptr<Request> isend(OperationMemory memory, uint64_t tag);
  std::shared_ptr<Request> ireceive(OperationMemory memory, TagChoice tag);

  // The same for callers that hold a lock of their own meanwhile (the GIL): false or null, with `memory` as
  // it was, where that might wait for another thread or take long.
  bool try_send(OperationMemory& memory, uint64_t tag);
  std::shared_ptr<Request> try_isend(OperationMemory& memory, uint64_t tag);
  std::shared_ptr<Request> try_ireceive(OperationMemory& memory, TagChoice tag);

  /// The message that a receive of this tag would get, once there is one; it stays where it is.
  WaitingMessage probe(TagChoice tag, std::optional<double> timeout);
  /// The same, if there is one now.
  std::optional<WaitingMessage> iprobe(TagChoice tag);

  // One-sided; the peer takes no part. Bounds and permission are checked against the key before anything is
  // posted. `notify` is told to the peer once the bytes are in its memory.
  std::shared_ptr<Request> write(OperationMemory memory, const RemoteKey& key, uint64_t offset,
                                 std::optional<uint32_t> notify = {});
  std::shared_ptr<Request> read(OperationMemory memory, const RemoteKey& key, uint64_t offset);
  /// A block of memory, and where in a region of the peer's it goes.
  struct Block {
    OperationMemory memory;
    RemoteKey key;
    uint64_t offset = 0;
  };
  /// Posts all blocks together; one operation, done when all are written.
  std::shared_ptr<Request> write_many(std::vector<Block> blocks, std::optional<uint32_t> notify = {});
  /// On 8 bytes at a multiple of 8 in the peer's memory; value() is what was there before.
  std::shared_ptr<Request> fetch_add(const RemoteKey& key, uint64_t offset, uint64_t value);
  std::shared_ptr<Request> compare_swap(const RemoteKey& key, uint64_t offset, uint64_t expected,
                                        uint64_t desired);
  /// Ends when every one-sided operation started before it has ended.
  std::shared_ptr<Request> flush();
  /// The immediates of the peer's writes, in the order they came.
  uint32_t next_notification(std::optional<double> timeout);
  /// The oldest, if there is one now.
  std::optional<uint32_t> take_notification();

  /// Takes back what has not met its counterpart yet, an unmatched receive or a send that was not posted: it
  /// never ends, then. False where it is too late for that.
  bool withdraw(const std::shared_ptr<Request>& request);
  /// Waits for an operation of this connection and throws what made it fail. On TimeoutError it goes on.
  void wait(const std::shared_ptr<Request>& request, std::optional<double> timeout);
  /// Whether it has finished; looks once.
  bool done(const Request& request);

  /// Sends what was sent on its way, tells the peer, and ends everything else with ClosedError. Idempotent.
  void close() override;
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

  /// What its waits make progress on.
  const std::shared_ptr<Progress>& progress_of_context() const noexcept { return waiting_.progress; }
  const std::string& peer() const noexcept { return peer_; }
  /// The way of each rail.
  const std::vector<Path>& paths() const noexcept { return paths_; }
  bool verifies() const noexcept { return verify_; }
  ConnectionStats stats();
  std::vector<RailStats> rail_stats();
  /// How its devices reach the memory of GPUs, of those that were asked to.
  std::vector<GpuChoice> gpu_choices() const;

  // Progressing.
  bool progress() noexcept override;
  void check_peer() noexcept override;
  void expect_close() override;
  void arm() noexcept override;
  void event_came() noexcept override { armed_.store(false, std::memory_order_release); }
  bool wants_polling() const noexcept override { return wants_polling_.load(std::memory_order_relaxed); }
  bool waits_for_gpu() const noexcept override { return waits_for_gpu_.load(std::memory_order_relaxed); }
  bool owns(const CompletionQueue* queue) const noexcept override;

 private:
  enum class State : uint8_t { open, peer_closed, failed, closed };
  enum class PeerEnd : uint8_t { alive, left, broken, gone };

  Connection(const ContextResources& resources, ConnectionParts parts);

  void check_usable() const;
  bool starts_quickly(const OperationMemory& memory, Access access) const;
  std::shared_ptr<Request> start_send(OperationMemory memory, uint64_t tag);
  std::shared_ptr<Request> start_receive(OperationMemory memory, TagChoice tag);
  std::shared_ptr<Request> start_one_sided(std::shared_ptr<Request> request);
  std::shared_ptr<Request> start_atomic(RequestKind kind, const RemoteKey& key, uint64_t offset,
                                        AtomicOperands operands);
  RemotePart remote_part(const RemoteKey& key, uint64_t offset, uint64_t bytes) const;
  /// The same of a region of several pieces.
  std::vector<RemotePart> remote_parts(const RemoteKey& key, uint64_t offset, uint64_t bytes) const;
  void add_remote(Request& request, const RemoteKey& key, uint64_t offset, uint64_t bytes) const {
    if (key.pieces.empty()) return request.add_remote(remote_part(key, offset, bytes));
    for (const RemotePart& part : remote_parts(key, offset, bytes)) request.add_remote(part);
  }
  RailKeys keys_of_rails(const RailKeys& keys, uint8_t count) const;

  // Memory of GPUs (connection_gpu.cpp). `access` is what its registration needs to grant, `at` its place in
  // the operation, which is made where it is none yet.
  void prepare(OperationMemory& memory, Access access, std::shared_ptr<DeviceOperation>& operation,
               uint64_t at = 0) {
    if (memory.device) prepare_device_memory(memory, access, at, operation);
  }
  void prepare_device_memory(OperationMemory& memory, Access access, uint64_t at,
                             std::shared_ptr<DeviceOperation>& operation);
  std::optional<uint32_t> flushed(std::optional<uint32_t> notification);

  /// Looks, under the lock, until `look()` finds something; what came before the end is still found after it.
  template <typename Look>
  auto wait_for_arrival(const Deadline& deadline, Look look);
  void finish(const std::shared_ptr<Request>& request, const Deadline& deadline, bool withdraw);
  [[noreturn]] void time_out(const Request& request, double seconds, bool withdrawn);

  /// For registrations, which are made outside the lock. Throws where the connection has ended.
  std::shared_ptr<const RailDomainList> usable_domains();

  // Under the lock.
  void check_open() const;
  void check_may_send();
  void check_may_receive(TagChoice tag);
  bool send_at_once(const OperationMemory& memory, uint64_t tag);
  std::optional<uint32_t> look_for_notification();
  bool poll();
  size_t poll_lane(size_t index);
  void handle(size_t index, const Completion& completion);
  void on_failed(size_t index, const Completion& completion);
  void read_socket();
  void on_record(const BootstrapSocket::Record& record);
  void lose_socket(const std::string& why);

  // Rails (connection_rails.cpp).
  bool may_retire(size_t index, const Completion& completion) const;
  void retire_lane(size_t index, const std::string& why);
  void settle_lane(size_t index);
  void on_rail_notice(RecordKind kind, const RailNotice& notice);
  void on_rail_failed(size_t index, uint64_t delivered);
  void on_rail_offer(size_t index, const RailNotice& offer);
  void on_rail_answer(size_t index, const RailNotice& answer);
  void revive_lane(size_t index);
  void look_after_lanes();
  void look_after_living(size_t index);
  void offer_lane(size_t index);
  void say(RecordKind kind, const RailNotice& notice) { exchange_.say(encode(kind, notice)); }
  void hear_notices();
  void judge();
  bool awaits_last_words();
  void fail(std::exception_ptr failure, State state, const std::string& word_to_peer = {});
  // What goes wrong while posting ends the connection.
  template <typename Body>
  void guarded(Body body) {
    try {
      body();
    } catch (...) {
      fail(std::current_exception(), State::failed);
      throw;
    }
  }
  std::exception_ptr completion_failure(size_t index, const Completion& completion) const;
  std::exception_ptr peer_lost(const std::string& why) const;
  std::exception_ptr closed_while_pending() const;
  void destroy_channels() noexcept;
  void shut_down() noexcept;

  const Waiting waiting_;
  const std::string peer_;
  const std::vector<Path> paths_;
  const std::vector<size_t> remote_rails_;  // of the lanes
  const bool verify_;
  const bool is_listener_;
  const std::shared_ptr<GpuRegistrar> gpus_;
  CallerMutex mutex_;
  std::atomic<bool> armed_{false};
  std::atomic<bool> wants_polling_{false};
  std::atomic<bool> waits_for_gpu_{false};
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> arrivals_{0};  // counts what may end a probe: messages, notifications, failures
  std::atomic<bool> quiet_{false};     // while closing: everything that was posted has completed

  Lanes lanes_;
  std::shared_ptr<const RailDomainList> domains_;  // of the lanes, under the lock; given up when closed
  std::vector<std::atomic<const CompletionQueue*>> queues_;  // of the lanes, to be recognized by
  const TransferLimits limits_;
  Exchange exchange_;
  BootstrapSocket socket_;
  State state_ = State::open;
  bool closing_ = false;  // what is pending now ends with ClosedError
  bool close_started_ = false;
  bool goodbye_posted_ = false;
  PeerEnd peer_end_ = PeerEnd::alive;
  std::string peer_words_;
  Deadline::Clock::time_point peer_ended_at_;
  std::optional<Deadline::Clock::time_point> farewell_at_;  // of the peer, over the queue pair
  // A failure whose cause the peer may still tell: it stands once its time has come.
  std::exception_ptr verdict_;
  Deadline::Clock::time_point verdict_at_;
  std::exception_ptr failure_;
  Deadline::Clock::time_point lanes_looked_at_;
  Deadline::Clock::time_point beaten_at_;
};

/// An operation that was started: wait for it, or look. Copies share it. May be used from any thread.
class RDMATX_API Work {
 public:
  Work(std::shared_ptr<Connection> connection, std::shared_ptr<Request> request)
      : connection_(std::move(connection)), request_(std::move(request)) {}
  /// Throws what made it fail; TimeoutError where it is still pending then, and it goes on.
  void wait(std::optional<double> timeout) const { connection_->wait(request_, timeout); }
  /// Whether it is known to have ended; looks at nothing else, and so costs nothing.
  bool finished() const noexcept { return request_->finished(); }
  bool done() const { return connection_->done(*request_); }
  /// Bytes moved; of a receive, what came. Throws UsageError while it is pending, or what made it fail.
  uint64_t bytes() const;
  const Request& request() const noexcept { return *request_; }
  const std::shared_ptr<Progress>& progress_of_context() const noexcept {
    return connection_->progress_of_context();
  }
  const std::shared_ptr<Connection>& connection() const noexcept { return connection_; }

 private:
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Request> request_;
};

}  // namespace rdmatx
