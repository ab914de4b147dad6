#pragma once

#include <arpa/inet.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "rdma/device.hpp"

namespace rdmatx {

class CompletionQueue;

/// The end of one work request (ibv_poll_cq(3)). A plain value, laid out as the verbs have it, so that
/// polling copies nothing.
class Completion {
 public:
  /// The number the work request carried.
  uint64_t work_id() const noexcept { return completion_.wr_id; }
  WorkCompletionStatus status() const noexcept {
    return static_cast<WorkCompletionStatus>(completion_.status);
  }
  bool succeeded() const noexcept { return completion_.status == IBV_WC_SUCCESS; }
  // Only the work id, the status, the queue pair number and the vendor error mean anything after a failure.
  CompletionOpcode opcode() const noexcept { return static_cast<CompletionOpcode>(completion_.opcode); }
  bool is_receive() const noexcept { return (completion_.opcode & IBV_WC_RECV) != 0; }
  /// Bytes received, read, or changed by an atomic; undefined for sends and writes.
  uint32_t bytes() const noexcept { return completion_.byte_len; }
  bool has_immediate() const noexcept { return (completion_.wc_flags & IBV_WC_WITH_IMM) != 0; }
  /// In host order.
  uint32_t immediate() const noexcept { return ntohl(completion_.imm_data); }
  uint32_t queue_pair_number() const noexcept { return completion_.qp_num; }
  uint32_t vendor_error() const noexcept { return completion_.vendor_err; }
  unsigned flags() const noexcept { return completion_.wc_flags; }

 private:
  ibv_wc completion_;
};
static_assert(sizeof(Completion) == sizeof(ibv_wc));

/// Owns a completion channel: a file descriptor that becomes readable when an armed completion queue gets a
/// completion. May be used from any thread.
class RDMATX_API CompletionChannel {
 public:
  static std::shared_ptr<CompletionChannel> create(std::shared_ptr<Device> device);

  int fd() const noexcept;
  const std::shared_ptr<Device>& device() const noexcept { return device_; }
  /// The completion queue that got a completion, or null when the time is up (negative: no limit) or a signal
  /// came. Events are acknowledged as they are taken, so destroying a queue never waits for them. A queue
  /// tells once for each arm(): arm it again, then poll it empty.
  std::shared_ptr<CompletionQueue> get_event(double timeout_seconds);

 private:
  friend class CompletionQueue;
  explicit CompletionChannel(std::shared_ptr<Device> device);
  ibv_comp_channel* get() const noexcept { return handle_.get(); }
  uint64_t reserve_id();
  void enroll(uint64_t id, const std::shared_ptr<CompletionQueue>& queue);
  std::shared_ptr<CompletionQueue> find(uint64_t id);

  std::shared_ptr<Device> device_;
  std::mutex mutex_;
  uint64_t next_id_ = 1;
  /// An event names its queue by this number: the queue itself may be gone by the time the event is read.
  std::map<uint64_t, std::weak_ptr<CompletionQueue>> queues_;
  CompletionChannelHandle handle_;
};

/// Owns a completion queue. May be used from any thread; two that poll at once share the completions out.
class RDMATX_API CompletionQueue {
 public:
  /// Room for at least `entries` completions; at most the device's max_cqe. A queue that overruns is dead, so
  /// make it as deep as all work that can be outstanding on it. `channel` may be null.
  static std::shared_ptr<CompletionQueue> create(std::shared_ptr<Device> device, int entries,
                                                 std::shared_ptr<CompletionChannel> channel = {});

  /// Fills the front of `completions` and returns how many; 0 where there is none. Never waits.
  size_t poll(std::span<Completion> completions);
  /// Asks for one event on the channel at the next completion (or the next solicited or failed one). Poll
  /// once more after arming: what arrived before does not count.
  void arm(bool solicited_only = false);
  void resize(int entries);
  /// How many completions it has room for.
  int capacity() const noexcept;
  const std::shared_ptr<Device>& device() const noexcept { return device_; }
  const std::shared_ptr<CompletionChannel>& channel() const noexcept { return channel_; }

 private:
  friend class QueuePair;
  CompletionQueue(std::shared_ptr<Device> device, int entries, std::shared_ptr<CompletionChannel> channel,
                  uint64_t id);
  ibv_cq* get() const noexcept { return handle_.get(); }

  std::shared_ptr<Device> device_;
  std::shared_ptr<CompletionChannel> channel_;
  CompletionQueueHandle handle_;
};

}  // namespace rdmatx
