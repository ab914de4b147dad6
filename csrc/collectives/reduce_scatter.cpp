#include "collectives/reduce_scatter.hpp"

#include <algorithm>

namespace rdmatx {

Schedule reduce_scatter_direct(const Place& place, const std::vector<uint64_t>& counts) {
  ScheduleBuilder builder;
  const auto offsets = offsets_of(counts);
  const auto block = [&](int rank) {
    return Range{BufferId::input, offsets[static_cast<size_t>(rank)], counts[static_cast<size_t>(rank)]};
  };
  const uint64_t own = counts[static_cast<size_t>(place.rank)];
  const Range output{BufferId::output, 0, own};
  std::vector<Range> parts(counts.size(), block(place.rank));
  for (int distance = 1; distance < place.world; ++distance) {
    const int target = place.after(distance);
    const int source = place.before(distance);
    Range& part = parts[static_cast<size_t>(source)];
    part = builder.scratch(own);
    for_each_chunk(block(target), place.chunk, [&](const Range& some) { builder.send(target, some); });
    for_each_chunk(part, place.chunk, [&](const Range& some) { builder.receive(source, some); });
  }
  if (place.world == 1) builder.copy(output, parts[0]);
  // The caller's output may be its own block of the input: it is written last.
  Range sum = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    const Range target = last ? output : i == 1 ? builder.scratch(own) : sum;
    builder.reduce(target, sum, parts[i]);
    sum = target;
  }
  builder.finish(output);
  return builder.build();
}

Schedule reduce_scatter_ring(const Place& place, const std::vector<uint64_t>& counts) {
  ScheduleBuilder builder;
  const auto offsets = offsets_of(counts);
  const uint64_t largest = *std::max_element(counts.begin(), counts.end());
  const uint64_t chunk = std::max<uint64_t>(1, std::min(place.chunk, largest));
  // Two blocks, in turn: one is sent on while the next one comes. With less, ranks would wait for each other
  // all around the ring.
  const Range partial[] = {builder.scratch(largest), builder.scratch(largest)};
  const auto block = [&](int index) {
    const auto i = static_cast<size_t>((index % place.world + 2 * place.world) % place.world);
    return Range{BufferId::input, offsets[i], counts[i]};
  };
  const int next = place.after(1);
  const int previous = place.before(1);
  const Range output{BufferId::output, 0, counts[static_cast<size_t>(place.rank)]};
  if (place.world == 1) builder.copy(output, block(0));
  if (place.world > 1)
    for_each_chunk(block(place.rank - 1), chunk, [&](const Range& part) { builder.send(next, part); });
  for (int step = 0; step + 1 < place.world; ++step) {
    const bool last = step + 2 == place.world;
    const Range own = block(place.rank - 2 - step);
    for_each_chunk(own, chunk, [&](const Range& part) {
      const Range arrived = partial[step % 2].part(part.offset - own.offset, part.count);
      builder.receive(previous, arrived);
      const Range target = last ? output.part(part.offset - own.offset, part.count) : arrived;
      builder.reduce(target, arrived, part);
      if (!last) builder.send(next, target);
    });
  }
  builder.finish(output);
  return builder.build();
}

}  // namespace rdmatx
