#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/ring.hpp"

namespace rdmatx {

/// What a receive asks for: messages of one tag, or, empty, of any.
using TagChoice = std::optional<uint64_t>;

/// Pairs receives with messages of one peer, pure logic: a message meets the oldest receive that takes its
/// tag, a receive the oldest message that it takes. A tag has waiting receives or waiting messages, never
/// both. No lock of its own; allocates nothing while the numbers of tags and of waiting messages do not grow.
///
/// `Posted` and `Arrived` are movable; `Posted` is compared for withdrawal.
template <typename Posted, typename Arrived>
class Matcher {
 public:
  /// The oldest message of this choice that nobody received yet.
  std::optional<Arrived> take_arrived(TagChoice choice) {
    const auto found = oldest_arrived(choice);
    if (found == arrived_.end()) return std::nullopt;
    // Of one tag they lie in both lists in the order they came.
    queue_of(found->tag).arrived.pop_front();
    std::optional<Arrived> arrived(std::move(found->arrived));
    spare_.splice(spare_.begin(), arrived_, found);
    return arrived;
  }
  /// The same, left where it is; null where there is none.
  const Arrived* peek_arrived(TagChoice choice) {
    const auto found = oldest_arrived(choice);
    return found == arrived_.end() ? nullptr : &found->arrived;
  }
  /// A receive that found no message waits for one.
  void post(TagChoice choice, Posted posted) {
    auto& waiting = choice ? queue_of(*choice).posted : any_;
    waiting.push_back({next_++, std::move(posted)});
    ++posted_count_;
  }

  /// The oldest receive that waits for this tag, or for any.
  std::optional<Posted> take_posted(uint64_t tag) {
    auto* waiting = &queue_of(tag).posted;
    if (!any_.empty() && (waiting->empty() || any_.front().number < waiting->front().number)) waiting = &any_;
    if (waiting->empty()) return std::nullopt;
    std::optional<Posted> posted(std::move(waiting->front().posted));
    waiting->pop_front();
    --posted_count_;
    return posted;
  }
  /// A message that found no receive waits for one.
  void arrive(uint64_t tag, Arrived arrived) {
    if (spare_.empty()) spare_.emplace_back();
    arrived_.splice(arrived_.end(), spare_, spare_.begin());
    arrived_.back().tag = tag;
    arrived_.back().arrived = std::move(arrived);
    queue_of(tag).arrived.push_back(std::prev(arrived_.end()));
  }

  /// Takes a waiting receive back; false where it is not waiting (any more).
  bool withdraw(TagChoice choice, const Posted& posted) {
    auto& waiting = choice ? queue_of(*choice).posted : any_;
    const bool found = waiting.erase_if([&](const Waiting& entry) { return entry.posted == posted; }) > 0;
    if (found) --posted_count_;
    return found;
  }

  size_t posted_count() const noexcept { return posted_count_; }
  size_t arrived_count() const noexcept { return arrived_.size(); }

  /// Hands every waiting receive to `take` and forgets it.
  template <typename Take>
  void drain_posted(Take take) {
    const auto drain = [&](Ring<Waiting>& waiting) {
      waiting.for_each([&](Waiting& entry) { take(std::move(entry.posted)); });
      waiting.clear();
    };
    for (auto& [tag, queue] : queues_) drain(queue.posted);
    drain(any_);
    posted_count_ = 0;
  }
  /// Forgets the waiting messages that `unwanted` accepts.
  template <typename Unwanted>
  void drop_arrived(Unwanted unwanted) {
    for (auto& [tag, queue] : queues_)
      queue.arrived.erase_if([&](const Place& place) { return unwanted(place->arrived); });
    arrived_.remove_if([&](const Message& message) { return unwanted(message.arrived); });
  }

 private:
  struct Waiting {
    uint64_t number = 0;  // receives of one tag and of any are served in the order they were posted
    Posted posted{};
  };
  struct Message {
    uint64_t tag = 0;
    Arrived arrived{};
  };
  using Place = typename std::list<Message>::iterator;
  struct Queue {
    Ring<Waiting> posted;
    Ring<Place> arrived;
    bool empty() const noexcept { return posted.empty() && arrived.empty(); }
  };

  Place oldest_arrived(TagChoice choice) {
    if (!choice) return arrived_.begin();
    const Queue& queue = queue_of(*choice);
    return queue.arrived.empty() ? arrived_.end() : queue.arrived.front();
  }

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
    while (spare_.size() > minimum_sweep) spare_.pop_front();
  }

  static constexpr size_t minimum_sweep = 256;
  std::list<Message> arrived_;  // of all tags, oldest first
  std::list<Message> spare_;    // nodes to be used again
  Ring<Waiting> any_;
  std::unordered_map<uint64_t, Queue> queues_;
  Queue* last_ = nullptr;
  uint64_t last_tag_ = 0;
  size_t sweep_at_ = minimum_sweep;
  size_t posted_count_ = 0;
  uint64_t next_ = 0;
};

}  // namespace rdmatx
