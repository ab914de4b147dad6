#pragma once

#include <cstdint>

namespace rdmatx {

/// How many receive slots a side posts, by what may arrive in them.
struct SlotCounts {
  uint32_t data = 0;     ///< eager messages and requests to send: the peer may be late to take them
  uint32_t control = 0;  ///< answers, which are handled as soon as they are seen
  /// Slots for messages that need no credit: those that return credit (at most four on their way, see
  /// `due`), notices of rails (a few, when one fails or comes back), and the last word of a connection. More
  /// than there is room for wait at the sender's device until there is.
  static constexpr uint32_t reserve = 12;
  constexpr uint32_t total() const noexcept { return data + control + reserve; }
};

/// Flow control of one direction pair, pure logic. A sender spends a credit for each slot it fills at the
/// peer, so that no message ever finds the peer without a slot: a late receiver costs waiting, never a retry.
///
/// Two pools, so that a receiver that holds back data credit still gets answers. A slot that was handled is
/// owed back; what is owed rides on any message, or, from half a pool on, on a message of its own. Since a
/// pool holds no more than two halves, at most two such messages of each pool are on their way. No lock of
/// its own.
class Credits {
 public:
  Credits(SlotCounts mine, SlotCounts theirs) noexcept
      : mine_(mine), data_(theirs.data), control_(theirs.control) {}

  bool has_data() const noexcept { return data_ > 0; }
  bool has_control() const noexcept { return control_ > 0; }
  void spend_data() noexcept { --data_; }
  void spend_control() noexcept { --control_; }
  uint32_t data() const noexcept { return data_; }
  uint32_t control() const noexcept { return control_; }

  /// The peer returned credit.
  void receive(uint32_t data, uint32_t control) noexcept {
    data_ += data;
    control_ += control;
  }

  /// A slot of ours was handled and posted again.
  void owe_data() noexcept { ++owed_data_; }
  void owe_control() noexcept { ++owed_control_; }

  struct Returned {
    uint16_t data;
    uint16_t control;
  };
  /// What is owed, to be put on a message that is about to be posted.
  Returned collect() noexcept {
    const Returned returned{static_cast<uint16_t>(owed_data_), static_cast<uint16_t>(owed_control_)};
    owed_data_ = owed_control_ = 0;
    return returned;
  }
  /// True where so much is owed that it deserves a message of its own.
  bool due() const noexcept { return owed_data_ * 2 >= mine_.data || owed_control_ * 2 >= mine_.control; }

 private:
  SlotCounts mine_;
  uint32_t data_;
  uint32_t control_;
  uint32_t owed_data_ = 0;
  uint32_t owed_control_ = 0;
};

}  // namespace rdmatx
