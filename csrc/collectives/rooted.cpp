#include "collectives/rooted.hpp"

#include <algorithm>
#include <bit>

namespace rdmatx {
namespace {

constexpr uint64_t pipeline_slots = 8;

/// Ranks counted from the root on.
struct FromRoot {
  FromRoot(const Place& where, int root_rank)
      : world(where.world), root(root_rank), number((where.rank - root_rank + where.world) % where.world) {}
  int rank_of(int other) const noexcept { return (other + root) % world; }

  int world;
  int root;
  int number;
};

}  // namespace

Schedule broadcast_tree(const Place& place, uint64_t count, int root) {
  ScheduleBuilder builder;
  const FromRoot self(place, root);
  const Range vector{BufferId::output, 0, count};
  const auto bits = static_cast<int>(std::bit_ceil(static_cast<unsigned>(place.world)));
  // Its lowest bit says who a rank hears from, and the bits below it whom it tells.
  const int lowest = self.number == 0 ? bits : self.number & -self.number;
  if (self.number != 0)
    for_each_chunk(vector, place.chunk,
                   [&](const Range& part) { builder.receive(self.rank_of(self.number - lowest), part); });
  for (int distance = lowest / 2; distance >= 1; distance /= 2) {
    if (self.number + distance >= place.world) continue;
    for_each_chunk(vector, place.chunk,
                   [&](const Range& part) { builder.send(self.rank_of(self.number + distance), part); });
  }
  return builder.build();
}

Schedule broadcast_chain(const Place& place, uint64_t count, int root) {
  ScheduleBuilder builder;
  const FromRoot self(place, root);
  for_each_chunk({BufferId::output, 0, count}, place.chunk, [&](const Range& part) {
    if (self.number > 0) builder.receive(self.rank_of(self.number - 1), part);
    if (self.number + 1 < place.world) builder.send(self.rank_of(self.number + 1), part);
  });
  return builder.build();
}

Schedule reduce_tree(const Place& place, uint64_t count, int root) {
  ScheduleBuilder builder;
  const FromRoot self(place, root);
  const Range input{BufferId::input, 0, count};
  const Range output{BufferId::output, 0, count};
  const bool is_root = self.number == 0;
  Range sum = input;
  for (int distance = 1; distance < place.world; distance *= 2) {
    if (self.number & distance) {
      builder.send(self.rank_of(self.number - distance), sum);
      break;
    }
    if (self.number + distance >= place.world) continue;
    const Range arrived = builder.scratch(count);
    builder.receive(self.rank_of(self.number + distance), arrived);
    const Range target = is_root ? output : sum == input ? builder.scratch(count) : sum;
    builder.reduce(target, sum, arrived);
    sum = target;
  }
  if (is_root && place.world == 1) builder.copy(output, input);
  if (is_root) builder.finish(output);
  return builder.build();
}

Schedule reduce_chain(const Place& place, uint64_t count, int root) {
  ScheduleBuilder builder;
  const FromRoot self(place, root);
  const bool is_root = self.number == 0;
  const bool is_last = self.number + 1 == place.world;
  const uint64_t chunk = std::max<uint64_t>(1, std::min(place.chunk, count));
  ScratchSlots slots(builder, chunk, std::min(pipeline_slots, count / chunk + 1));
  for_each_chunk({BufferId::input, 0, count}, chunk, [&](const Range& part) {
    const Range output{BufferId::output, part.offset, part.count};
    Range sum = part;
    if (!is_last) {
      const Range arrived = slots.take(part.count);
      builder.receive(self.rank_of(self.number + 1), arrived);
      sum = is_root ? output : arrived;
      builder.reduce(sum, part, arrived);
    }
    if (!is_root) return builder.send(self.rank_of(self.number - 1), sum);
    if (is_last) builder.copy(output, part);
    builder.finish(output);
  });
  return builder.build();
}

Schedule gather_direct(const Place& place, const std::vector<uint64_t>& counts, int root) {
  ScheduleBuilder builder;
  const auto offsets = offsets_of(counts);
  const Range own{BufferId::input, 0, counts[static_cast<size_t>(place.rank)]};
  if (place.rank != root) {
    for_each_chunk(own, place.chunk, [&](const Range& part) { builder.send(root, part); });
    return builder.build();
  }
  for (int distance = 1; distance < place.world; ++distance) {
    const int source = place.after(distance);
    const auto i = static_cast<size_t>(source);
    for_each_chunk({BufferId::output, offsets[i], counts[i]}, place.chunk,
                   [&](const Range& part) { builder.receive(source, part); });
  }
  builder.copy({BufferId::output, offsets[static_cast<size_t>(root)], own.count}, own);
  return builder.build();
}

Schedule scatter_direct(const Place& place, const std::vector<uint64_t>& counts, int root) {
  ScheduleBuilder builder;
  const auto offsets = offsets_of(counts);
  const Range own{BufferId::output, 0, counts[static_cast<size_t>(place.rank)]};
  if (place.rank != root) {
    for_each_chunk(own, place.chunk, [&](const Range& part) { builder.receive(root, part); });
    return builder.build();
  }
  for (int distance = 1; distance < place.world; ++distance) {
    const int target = place.after(distance);
    const auto i = static_cast<size_t>(target);
    for_each_chunk({BufferId::input, offsets[i], counts[i]}, place.chunk,
                   [&](const Range& part) { builder.send(target, part); });
  }
  builder.copy(own, {BufferId::input, offsets[static_cast<size_t>(root)], own.count});
  return builder.build();
}

}  // namespace rdmatx
