#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "messaging/planner.hpp"
#include "messaging/protocol.hpp"
#include "messaging/request.hpp"
#include "rdma/queue_pair.hpp"

namespace rdmatx {

/// One queue pair to one peer, with its completion queue and its message slots: posts messages and pieces of
/// transfers, keeps account of what is posted, and hands out what completes. It knows slots and work
/// requests, and nothing of tags, matching or credit.
///
/// Owns the queue pair, the completion queue and the memory of the slots. No lock of its own: its
/// connection's.
class Channel {
 public:
  /// Creates everything and connects nothing. Throws VerbsError, UnavailableError.
  Channel(const std::shared_ptr<ProtectionDomain>& domain, const std::shared_ptr<CompletionChannel>& events);
  /// Messages stay in slots until they are delivered, so that they can be sent again over another channel.
  void keep_messages() noexcept { keeps_messages_ = true; }

  Address local_address(int port, int gid_index) const { return queue_pair_->local_address(port, gid_index); }
  uint32_t queue_pair_number() const noexcept { return queue_pair_->number(); }
  /// Posts every receive slot and brings the queue pair to ready-to-send.
  void connect(const Address& local, const Address& remote, uint8_t max_rd_atomic);
  /// Limits of transfers over this queue pair through this port.
  TransferLimits limits(uint32_t max_message_bytes) const;

  /// Room for a message of this many bytes behind its header.
  bool can_post_message(size_t payload_bytes) const noexcept {
    return free_places() > 0 && (fits_inline(payload_bytes) || !free_slots_.empty());
  }
  /// Copies header and payload out before it returns. `request`, where given, is handed back by retire().
  void post_message(const MessageHeader& header, const void* payload, size_t payload_bytes,
                    std::shared_ptr<Request> request = {});

  /// The next message is signalled, so that idle() comes true in time.
  void ask_for_completion() noexcept { unsignalled_ = depth_; }

  /// Room for a piece of a transfer: some places always stay free for messages.
  bool can_post_piece() const noexcept { return free_places() > message_places; }
  /// Posts one planned piece of the request's memory with the keys of this rail; `immediate` makes a write
  /// fill a slot of the peer and tell it. The request is handed back by retire().
  void post_piece(const std::shared_ptr<Request>& request, const PlannedWork& piece, size_t rail,
                  std::optional<uint32_t> immediate = {});
  /// Room for an atomic, whose result needs a slot.
  bool can_post_atomic() const noexcept { return can_post_piece() && !free_slots_.empty(); }
  /// Posts a fetch-and-add or compare-and-swap; retire() hands the request back with the value there was.
  void post_atomic(const std::shared_ptr<Request>& request, size_t rail);

  /// From here on work is collected, to be posted with one call by end_batch(), or where the batch is full.
  void begin_batch() noexcept { batching_ = true; }
  void end_batch() {
    batching_ = false;
    submit();
  }

  size_t poll(std::span<Completion> completions) { return completion_queue_->poll(completions); }
  const std::shared_ptr<CompletionQueue>& completion_queue() const noexcept { return completion_queue_; }

  static bool is_receive(const Completion& completion) noexcept { return completion.work_id() & receive_bit; }
  /// Of a receive: it is no message but the immediate of a write, which leaves its slot as it was.
  static bool is_notification(const Completion& completion) noexcept { return completion.has_immediate(); }
  /// Counts what the peer delivered: messages and notifications.
  void count_delivery() noexcept { ++deliveries_; }
  uint64_t deliveries() const noexcept { return deliveries_; }
  /// What arrived; valid until the slot is posted again.
  std::span<const std::byte> arrived(const Completion& completion) const noexcept;
  /// Gives the slot of a handled message back to the queue pair, with the next post_returned_slots().
  void return_slot(const Completion& completion) { returned_.push_back(receives_[slot_of(completion)]); }
  void post_returned_slots();

  /// Takes everything up to this completion off the books; `done` gets the requests it was posted for, once
  /// for each piece or message.
  template <typename Done>
  void retire(const Completion& completion, Done done) {
    while (tail_ <= completion.work_id()) {
      Posted& posted = retire_one();
      if (posted.request) done(std::move(posted.request));
    }
  }
  /// What the failed work was: "write of 4096 bytes".
  std::string describe(const Completion& completion) const;
  /// Something that was posted and has not completed.
  struct Unfinished {
    std::shared_ptr<Request> request;
    TransferRange range;  ///< of a piece
    bool is_piece = false;
    bool is_atomic = false;
    bool notifies = false;  ///< a piece with a notification
    /// The peer has seen it, or something that was posted behind it: of what goes there, all has arrived.
    bool delivered = false;
    std::span<const std::byte> message;  ///< header and payload of one that is kept
  };
  /// Hands out all that has not completed, oldest first, and forgets it. The peer has seen `delivered`
  /// messages and notifications over this channel.
  template <typename Take>
  void drain(uint64_t delivered, Take take) {
    const uint64_t seen = end_of_delivered(delivered);
    while (tail_ < head_) {
      const bool arrived = tail_ < seen;
      take(unfinished(retire_one(), arrived));
    }
  }
  bool idle() const noexcept { return tail_ == head_; }
  /// Whether something that was posted for a request has not completed.
  bool has_requests() const noexcept;
  /// Of transfers, posted and not completed.
  uint64_t outstanding_bytes() const noexcept { return outstanding_bytes_; }
  /// Nothing more is taken or delivered; what is posted is flushed.
  void stop() { queue_pair_->to_error(); }
  /// Destroys the queue pair: afterwards no work of it touches memory, on either side.
  void destroy() noexcept { queue_pair_.reset(); }

 private:
  static constexpr uint64_t receive_bit = uint64_t{1} << 63;
  static constexpr uint32_t message_places = 32;
  static constexpr uint16_t no_slot = 0xffff;
  static constexpr size_t most_batched = 32;

  // A work request in the send queue; completions come in posting order.
  enum class Kind : uint8_t { message, piece, atomic };
  struct Posted {
    std::shared_ptr<Request> request;
    TransferRange range;  // of a transfer; of a message its payload
    const char* what = "";
    uint16_t slot = no_slot;  // of an atomic: it gets the value there was
    Kind kind = Kind::message;
    bool fills_slot = false;  // of the peer
  };
  struct FreeMemory {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };

  uint64_t end_of_delivered(uint64_t delivered) const noexcept;
  Unfinished unfinished(Posted& posted, bool delivered) noexcept;
  void create_queue_pair(const std::shared_ptr<ProtectionDomain>& domain);
  static size_t slot_of(const Completion& completion) noexcept { return completion.work_id() & ~receive_bit; }
  bool fits_inline(size_t payload) const noexcept {
    return !keeps_messages_ && sizeof(MessageHeader) + payload <= inline_bytes_;
  }
  uint32_t free_places() const noexcept { return depth_ - static_cast<uint32_t>(head_ - tail_); }
  Posted& retire_one() noexcept;
  bool time_to_signal(uint16_t slot) noexcept;
  uint16_t take_slot() noexcept;
  void post(SendWork&& work, Posted posted);
  void submit();
  std::byte* slot(size_t number) const noexcept { return memory_.get() + number * ProtocolSizes::slot_bytes; }

  // The completion queue outlives the queue pair, and the registration the memory: declared before them.
  std::unique_ptr<std::byte, FreeMemory> memory_;
  std::shared_ptr<MemoryRegion> slots_;
  std::shared_ptr<CompletionQueue> completion_queue_;
  std::shared_ptr<QueuePair> queue_pair_;
  uint32_t depth_ = 0;
  uint32_t inline_bytes_ = 0;
  std::vector<ReceiveWork> receives_;
  std::vector<ReceiveWork> returned_;
  std::vector<uint16_t> free_slots_;
  std::vector<Posted> posted_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  uint32_t unsignalled_ = 0;
  uint64_t deliveries_ = 0;
  uint64_t fills_retired_ = 0;
  uint64_t outstanding_bytes_ = 0;
  bool keeps_messages_ = false;
  bool batching_ = false;
  std::vector<SendWork> batch_;
  std::vector<std::byte>
      batch_inline_;  // inlined messages of the batch: inline data is read when it is posted
};

}  // namespace rdmatx
