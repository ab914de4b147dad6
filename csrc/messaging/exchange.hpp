#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ring.hpp"
#include "messaging/credits.hpp"
#include "messaging/lanes.hpp"
#include "messaging/matcher.hpp"
#include "messaging/transfers.hpp"

namespace rdmatx {

/// Bytes and messages of one connection since it was opened.
struct ConnectionStats {
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t bytes_written = 0;  ///< one-sided, by this side
  uint64_t bytes_read = 0;
  uint64_t atomics = 0;                 ///< performed by this side
  uint64_t notifications_sent = 0;      ///< with writes of this side
  uint64_t notifications_received = 0;  ///< with writes of the peer; those that wait to be taken included
  uint64_t messages_refused = 0;        ///< messages of either side that did not fit their receive
  uint64_t unexpected_messages = 0;     ///< waiting now, not received yet
  uint64_t unexpected_bytes = 0;
  uint64_t waiting_notifications = 0;  ///< now
};

/// A message that waits to be received.
struct WaitingMessage {
  uint64_t tag = 0;
  uint64_t bytes = 0;
};

/// The protocol of one connection: eager and rendezvous messages, matching, credit, and the queues for what
/// cannot be posted yet. docs/wire-protocol.md describes it.
///
/// Owns the requests it was given until they finish. No lock of its own and no waiting: its connection calls
/// it under its lock. A peer that breaks the protocol makes handle() throw Error.
class Exchange {
 public:
  /// `verify`: messages carry checksums.
  Exchange(Lanes& lanes, SlotCounts peer_slots, bool verify, std::string peer)
      : lanes_(lanes), peer_(std::move(peer)), credits_(ProtocolSizes::slots, peer_slots), verify_(verify) {}

  static bool is_eager(uint64_t bytes) noexcept { return bytes <= ProtocolSizes::eager_bytes; }

  /// Sends an eager message at once where nothing is in its way: no request is needed then.
  bool try_send(uint64_t tag, const void* data, uint64_t bytes);
  /// Queues a send; a rendezvous has its memory registered.
  void send(std::shared_ptr<Request> request);
  /// Takes a message that is here already, without a request: true and its size where it was eager and fits.
  bool try_receive(TagChoice tag, void* data, uint64_t capacity, uint64_t& bytes);
  void receive(std::shared_ptr<Request> request);
  /// The message that a receive of this tag would find.
  std::optional<WaitingMessage> waiting_message(TagChoice tag);
  /// Takes back what has not met its counterpart yet: an unmatched receive, or a send that was not posted.
  bool withdraw(const std::shared_ptr<Request>& request);
  /// Starts a one-sided operation; its memory is registered, or inline, and it knows where the peer's lies.
  void transfer(std::shared_ptr<Request> request);
  /// A request that ends once every one-sided operation started before has ended.
  void flush_one_sided(std::shared_ptr<Request> request);
  /// The oldest immediate that came with a write of the peer.
  std::optional<uint32_t> take_notification();

  /// One message of the peer.
  void handle(std::span<const std::byte> message);
  /// A write of the peer told us so.
  void notified(uint32_t immediate);
  /// Something that was posted for the request completed: a piece of it, or its last message.
  void complete(const std::shared_ptr<Request>& request);
  /// Posts what can be posted.
  void flush();
  /// The last word: false where there is no place for it yet.
  bool post_goodbye();
  bool peer_said_goodbye() const noexcept { return peer_said_goodbye_; }
  /// A record about a rail, for the peer: over the first rail that lives.
  void say(std::vector<std::byte> record);
  /// The next one that the peer said; empty where there is none.
  std::vector<std::byte> take_notice();
  /// Something small, so that a rail that leads nowhere is found out.
  void beat();

  /// A rail failed, and the peer has told how many messages and notifications it got over it: what it did not
  /// get is sent again over the others, as soon as flush() can.
  void settle(Channel& failed, uint64_t delivered);

  /// Ends everything that is pending, for good. Messages that came whole stay receivable.
  void fail_all(const std::exception_ptr& failure);
  /// Whether an operation waits for a GPU: then flush() is due without anything coming in.
  bool awaits_gpu() const noexcept { return !gpu_requests_.empty(); }
  /// Whether one has begun or ended since this was asked last.
  bool take_gpu_progress() noexcept { return std::exchange(gpu_progressed_, false); }
  /// Throws, once, where an eager message of ours turned out not to fit.
  void check_late_refusal();
  /// Work that the device moves without us, or that waits for our next flush().
  bool has_transfers() const noexcept {
    return !transfers_.empty() || !notifying_.empty() || !writing_.empty() || !again_.empty() ||
           active_ > 0 || awaits_gpu();
  }
  ConnectionStats stats() const;

 private:
  struct Unexpected {
    uint64_t tag = 0;
    uint64_t bytes = 0;
    uint64_t id = 0;  // of the peer's send; 0: eager, the payload is here
    std::vector<std::byte> payload;
    bool credit_held = false;
  };
  struct Control {
    MessageHeader header;
    std::vector<RemotePart> parts;
    std::shared_ptr<Request> request;  // handed back when the message was delivered
  };
  // A message that a rail failed to deliver: as it was, since its credit is spent and that in it is owed.
  struct Again {
    std::vector<std::byte> message;
    std::shared_ptr<Request> request;
  };
  // What is left to do of a request whose work a failed rail had.
  struct Leftover {
    std::shared_ptr<Request> request;
    std::vector<TransferRange> ranges;
  };
  struct Leftovers {
    std::vector<Leftover> transfers;
    std::vector<std::shared_ptr<Request>> notifying;
    std::vector<Again> messages;
    std::vector<std::vector<std::byte>> notices;
  };
  using Requests = std::unordered_map<uint64_t, std::shared_ptr<Request>>;

  void on_eager(const MessageHeader& header, std::span<const std::byte> payload);
  void on_request(const MessageHeader& header);
  void on_clear(const MessageHeader& header, std::span<const std::byte> payload);
  void on_finish(const MessageHeader& header);
  void on_refuse(const MessageHeader& header);

  void deliver(const std::shared_ptr<Request>& request, const MessageHeader& header,
               std::span<const std::byte> payload);
  void grant(const std::shared_ptr<Request>& request, const MessageHeader& header);
  void refuse(Request& request, const MessageHeader& header);
  void keep(const MessageHeader& header, std::span<const std::byte> payload);
  void settle(Unexpected& unexpected);
  void check_sum(uint32_t found, const MessageHeader& header) const;
  bool over_budget() const noexcept;
  std::shared_ptr<Request> take(Requests& requests, uint64_t id, const char* what);
  bool can_post_message(size_t bytes) noexcept {
    Channel* channel = lanes_.messages();
    return channel && again_.empty() && channel->can_post_message(bytes);
  }
  bool meet(std::shared_ptr<Request> request);
  void begin_transfer(std::shared_ptr<Request> request);
  void begin_flush(std::shared_ptr<Request> request);

  // Memory of GPUs (exchange_gpu.cpp).
  void note_device(const std::shared_ptr<Request>& request) {
    if (request->device()) gpu_requests_.push_back(request);
  }
  void look_at_gpu();
  void fail_hopeless();
  void begin_ready();
  void finish_landed();
  /// All bytes that were to come have: the request ends, or does once they are in the GPU's memory.
  void end_arrival(const std::shared_ptr<Request>& request, uint64_t bytes) {
    if (!request->device()) return request->succeed(bytes);
    land(request, bytes);
  }
  void land(const std::shared_ptr<Request>& request, uint64_t bytes);

  void flush_notices();
  void flush_again();
  void flush_control();
  void flush_transfers();
  void flush_notifications();
  bool may_notify(const std::shared_ptr<Request>& request) const noexcept {
    return !notifying_.empty() && notifying_.front() == request && credits_.has_data();
  }
  bool post_at_once(const std::shared_ptr<Request>& request);
  void end_of_posting(const Transfer& transfer);
  void queue_finish(const std::shared_ptr<Request>& request);
  void end_of_pieces(const std::shared_ptr<Request>& request);
  void end_flushes();
  void take_over(Channel::Unfinished work, Leftovers& leftovers);
  void take_over_message(Channel::Unfinished work, Leftovers& leftovers);
  void take_over_atomic(const std::shared_ptr<Request>& request);
  Transfer* find_transfer(const std::shared_ptr<Request>& request);
  void resume(Leftovers leftovers);
  void sent_notification() noexcept;
  void post_data(const std::shared_ptr<Request>& request);
  void post(MessageHeader header, const void* payload, size_t payload_bytes,
            std::shared_ptr<Request> request = {});

  Lanes& lanes_;
  const std::string peer_;
  Credits credits_;
  Matcher<std::shared_ptr<Request>, Unexpected> matcher_;
  Ring<std::shared_ptr<Request>> data_;  // sends in order, not posted yet
  Ring<Control> control_;                // answers, not posted yet
  Ring<std::vector<std::byte>> unsaid_;  // notices for the peer, before everything else
  Ring<std::vector<std::byte>> heard_;   // and the peer's
  Ring<Again> again_;                    // before everything but those
  Ring<std::unique_ptr<Transfer>> transfers_;
  Ring<std::shared_ptr<Request>> notifying_;  // writes, in order, whose notification was not posted
  Ring<std::shared_ptr<Request>> one_sided_;  // in the order they were started, flushes among them
  Ring<uint32_t> notifications_;              // of the peer, not taken yet
  // Of memory of GPUs, and what was started behind them; all of them, while pending, in gpu_requests_.
  std::vector<std::shared_ptr<Request>> gpu_requests_;
  Ring<std::shared_ptr<Request>> gated_receives_;
  Ring<std::shared_ptr<Request>> gated_one_sided_;
  std::vector<std::shared_ptr<Request>> landing_;  // all has come, and is on its way to the GPU
  bool gpu_progressed_ = false;
  uint64_t notification_credits_held_ = 0;
  Requests asked_;       // sends whose request to send waits for an answer
  Requests writing_;     // receives the peer was cleared to write to
  uint64_t active_ = 0;  // one-sided operations and rendezvous writes that were posted and have not ended
  uint64_t next_id_ = 1;
  uint64_t unexpected_bytes_ = 0;
  std::vector<std::vector<std::byte>> spare_payloads_;
  std::vector<std::byte> encoded_parts_;
  const bool verify_;
  bool peer_said_goodbye_ = false;
  bool ended_ = false;
  std::exception_ptr late_refusal_;
  ConnectionStats stats_;
};

}  // namespace rdmatx
