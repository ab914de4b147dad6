#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace rdmatx::soft {

/// Which of two ways carries a write to a peer that polls: the ring (two plain copies, one on each side, in a
/// pipeline) or the kernel's copy. Which is faster depends on the caches, on where the two processes run
/// relative to each other, and, on a virtual machine, on the minute. So what writes of about the same size
/// took lately decides, and now and then the other way is tried. Pure logic; of one queue pair.
class WriteWays {
 public:
  enum Way : uint8_t { ring, copy };
  struct Choice {
    Way way;
    bool timed;  ///< whether took() should be told
  };
  /// One write in so many tries the other way, and one in so many is timed.
  static constexpr uint32_t try_every = 256, time_every = 4;

  Choice choose(uint64_t bytes) noexcept {
    SizeClass& writes = of(bytes);
    const uint32_t number = writes.count++;
    for (const Way way : {ring, copy})
      if (writes.cost[way] == 0) return {way, true};
    const Way better = writes.cost[ring] <= writes.cost[copy] ? ring : copy;
    if (number % try_every == 0) return {better == ring ? copy : ring, true};
    return {better, number % time_every == 0};
  }

  void took(Way way, uint64_t bytes, uint64_t ns) noexcept {
    float& cost = of(bytes).cost[way];
    const float found = std::max(static_cast<float>(ns) / static_cast<float>(bytes), 1e-6f);
    // One that took long says little (somebody else may have had the processor), one that did not says much.
    if (cost == 0)
      cost = found;
    else if (found < cost)
      cost += (found - cost) / 2;
    else
      cost += (std::min(found, 4 * cost) - cost) / 8;
  }

 private:
  struct SizeClass {
    float cost[2] = {0, 0};  // ns a byte, 0 while it is not known
    uint32_t count = 0;
  };
  SizeClass& of(uint64_t bytes) noexcept {
    return classes_[std::min<size_t>(static_cast<size_t>(std::bit_width(bytes | 1) - 1),
                                     classes_.size() - 1)];
  }
  std::array<SizeClass, 24> classes_{};  // by powers of two
};

}  // namespace rdmatx::soft
