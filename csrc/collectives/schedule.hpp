#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/export.hpp"

// What a rank of a group does for one collective, as pure logic: no connections, no memory, no clock.

namespace rdmatx {

/// The memory of a collective. `input` and `output` are the caller's, `scratch` is made for it.
enum class BufferId : uint8_t { input, output, scratch };
constexpr size_t buffer_count = 3;

/// Elements of one of them.
struct Range {
  BufferId buffer = BufferId::output;
  uint64_t offset = 0;
  uint64_t count = 0;

  Range part(uint64_t at, uint64_t elements) const noexcept { return {buffer, offset + at, elements}; }
  bool overlaps(const Range& other) const noexcept {
    return buffer == other.buffer && offset < other.offset + other.count && other.offset < offset + count;
  }
  bool covers(const Range& other) const noexcept {
    return buffer == other.buffer && offset <= other.offset && other.offset + other.count <= offset + count;
  }
  bool operator==(const Range&) const = default;
};

enum class StepKind : uint8_t {
  send,     ///< left, to peer
  receive,  ///< target, from peer
  reduce,   ///< target = left op right
  copy,     ///< target = left
  finish,   ///< target is a whole sum: of an average, it is divided now
};

struct Step {
  StepKind kind;
  int peer = -1;
  Range target;
  Range left;
  Range right;
};

/// Who of how many, and how many elements go in one message at most, so that a long transfer is a pipeline.
struct Place {
  int rank = 0;
  int world = 1;
  uint64_t chunk = UINT64_MAX;

  int after(int distance) const noexcept { return (rank + distance) % world; }
  int before(int distance) const noexcept { return (rank + world - distance % world) % world; }
};

/// The steps of one rank and what each waits for: steps that touch the same elements keep the order they were
/// written down in, all others may go on at once. Messages to a peer, and those from it, are started in
/// order. Immutable.
class RDMATX_API Schedule {
 public:
  const std::vector<Step>& steps() const noexcept { return steps_; }
  uint64_t scratch_count() const noexcept { return scratch_count_; }

 private:
  friend class ScheduleBuilder;
  friend class ScheduleRun;
  std::vector<Step> steps_;
  std::vector<uint32_t> waits_;            // by step: how many others it waits for
  std::vector<uint32_t> followers_begin_;  // by step, one more: its part of followers_
  std::vector<uint32_t> followers_;        // who waits for its end
  std::vector<uint32_t> next_in_line_;     // by step: the next message to, or from, the same peer
  uint64_t scratch_count_ = 0;
};

/// Writes a schedule down. Steps of no elements are left out. Used by one thread.
class RDMATX_API ScheduleBuilder {
 public:
  void send(int peer, const Range& from);
  void receive(int peer, const Range& into);
  /// target = left op right; it may be one of them.
  void reduce(const Range& target, const Range& left, const Range& right);
  void copy(const Range& target, const Range& from);
  void finish(const Range& target);
  /// New elements of scratch.
  Range scratch(uint64_t count);
  Schedule build();

 private:
  struct Access {
    Range range;
    uint32_t step;
  };
  void add(Step step);
  void read(uint32_t step, const Range& range);
  void write(uint32_t step, const Range& range);

  std::vector<Step> steps_;
  std::vector<std::pair<uint32_t, uint32_t>> edges_;  // from, to
  std::array<std::vector<Access>, buffer_count> reads_;
  std::array<std::vector<Access>, buffer_count> writes_;
  uint64_t scratch_count_ = 0;
};

/// Pieces of scratch that are used in turn, so that a pipeline of any length takes a bounded amount.
class RDMATX_API ScratchSlots {
 public:
  ScratchSlots(ScheduleBuilder& builder, uint64_t slot_elements, uint64_t slots);
  /// The next one's first `count` elements.
  Range take(uint64_t count);

 private:
  Range all_;
  uint64_t slot_elements_;
  uint64_t slots_;
  uint64_t next_ = 0;
};

/// Calls `each(part)` for the pieces of at most `chunk` elements that a range is cut into.
template <typename Each>
void for_each_chunk(const Range& range, uint64_t chunk, Each each) {
  for (uint64_t at = 0; at < range.count; at += chunk)
    each(range.part(at, range.count - at < chunk ? range.count - at : chunk));
}

/// `total` elements cut into `parts` that differ by at most one, in order; and where each begins, one more.
RDMATX_API std::vector<uint64_t> even_offsets(uint64_t total, int parts);
RDMATX_API std::vector<uint64_t> offsets_of(const std::vector<uint64_t>& counts);

/// How far one run of a schedule is. Says what may be started; whoever runs it says what has ended. Used by
/// one thread.
class RDMATX_API ScheduleRun {
 public:
  /// The schedule must live as long.
  explicit ScheduleRun(const Schedule& schedule);
  /// A step that may be started, and counts as started now.
  std::optional<uint32_t> next();
  void ended(uint32_t step);
  bool done() const noexcept { return left_ == 0; }
  const Step& step(uint32_t index) const noexcept { return schedule_->steps_[index]; }

 private:
  void release(uint32_t step);

  const Schedule* schedule_;
  std::vector<uint32_t> waits_;
  std::deque<uint32_t> ready_;
  size_t left_;
};

}  // namespace rdmatx
