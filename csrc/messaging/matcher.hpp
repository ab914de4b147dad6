#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

namespace rdmatx {

/// Pairs receives with messages of one peer: by tag, in order, pure logic. A tag has waiting receives or
/// waiting messages, never both. No lock of its own.
///
/// `Posted` and `Arrived` are movable; `Posted` is compared for withdrawal.
template <typename Posted, typename Arrived>
class Matcher {
 public:
  /// The oldest message of this tag that nobody received yet.
  std::optional<Arrived> take_arrived(uint64_t tag) {
    Queue& queue = queue_of(tag);
    if (queue.arrived.empty()) return std::nullopt;
    std::optional<Arrived> arrived(std::move(queue.arrived.front()));
    queue.arrived.pop_front();
    --arrived_count_;
    return arrived;
  }
  /// The same, left where it is; null where there is none.
  const Arrived* peek_arrived(uint64_t tag) {
    const Queue& queue = queue_of(tag);
    return queue.arrived.empty() ? nullptr : &queue.arrived.front();
  }
  /// A receive that found no message waits for one.
  void post(uint64_t tag, Posted posted) {
    queue_of(tag).posted.push_back(std::move(posted));
    ++posted_count_;
  }

  /// The oldest receive that waits for this tag.
  std::optional<Posted> take_posted(uint64_t tag) {
    Queue& queue = queue_of(tag);
    if (queue.posted.empty()) return std::nullopt;
    std::optional<Posted> posted(std::move(queue.posted.front()));
    queue.posted.pop_front();
    --posted_count_;
    return posted;
  }
  /// A message that found no receive waits for one.
  void arrive(uint64_t tag, Arrived arrived) {
    queue_of(tag).arrived.push_back(std::move(arrived));
    ++arrived_count_;
  }

  /// Takes a waiting receive back; false where it is not waiting (any more).
  bool withdraw(uint64_t tag, const Posted& posted) {
    auto& waiting = queue_of(tag).posted;
    for (auto it = waiting.begin(); it != waiting.end(); ++it) {
      if (!(*it == posted)) continue;
      waiting.erase(it);
      --posted_count_;
      return true;
    }
    return false;
  }

  size_t posted_count() const noexcept { return posted_count_; }
  size_t arrived_count() const noexcept { return arrived_count_; }

  /// Hands every waiting receive to `take` and forgets it.
  template <typename Take>
  void drain_posted(Take take) {
    for (auto& [tag, queue] : queues_) {
      for (Posted& posted : queue.posted) take(std::move(posted));
      queue.posted.clear();
    }
    posted_count_ = 0;
  }
  /// Forgets the waiting messages that `unwanted` accepts.
  template <typename Unwanted>
  void drop_arrived(Unwanted unwanted) {
    for (auto& [tag, queue] : queues_) arrived_count_ -= std::erase_if(queue.arrived, unwanted);
  }

 private:
  struct Queue {
    std::deque<Posted> posted;
    std::deque<Arrived> arrived;
    bool empty() const noexcept { return posted.empty() && arrived.empty(); }
  };

  // Queues of tags in use are kept, since a tag is mostly used again; those of tags used once are forgotten
  // in one sweep when there are many. The last one is remembered: most programs use one tag at a time.
  Queue& queue_of(uint64_t tag) {
    if (last_ && last_tag_ == tag) return *last_;
    auto it = queues_.find(tag);
    if (it == queues_.end()) {
      if (queues_.size() >= sweep_at_) sweep();
      it = queues_.try_emplace(tag).first;
    }
    last_tag_ = tag;
    last_ = &it->second;
    return *last_;
  }
  void sweep() {
    std::erase_if(queues_, [](const auto& entry) { return entry.second.empty(); });
    last_ = nullptr;
    sweep_at_ = queues_.size() * 2 < minimum_sweep ? minimum_sweep : queues_.size() * 2;
  }

  static constexpr size_t minimum_sweep = 256;
  std::unordered_map<uint64_t, Queue> queues_;
  Queue* last_ = nullptr;
  uint64_t last_tag_ = 0;
  size_t sweep_at_ = minimum_sweep;
  size_t posted_count_ = 0;
  size_t arrived_count_ = 0;
};

}  // namespace rdmatx
