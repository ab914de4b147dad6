#include "collectives/all_to_all.hpp"

namespace rdmatx {

Schedule all_to_all_direct(const Place& place, const std::vector<uint64_t>& send_counts,
                           const std::vector<uint64_t>& receive_counts) {
  ScheduleBuilder builder;
  const auto from = offsets_of(send_counts);
  const auto to = offsets_of(receive_counts);
  for (int distance = 1; distance < place.world; ++distance) {
    const int target = place.after(distance);
    const int source = place.before(distance);
    const auto t = static_cast<size_t>(target);
    const auto s = static_cast<size_t>(source);
    for_each_chunk({BufferId::input, from[t], send_counts[t]}, place.chunk,
                   [&](const Range& part) { builder.send(target, part); });
    for_each_chunk({BufferId::output, to[s], receive_counts[s]}, place.chunk,
                   [&](const Range& part) { builder.receive(source, part); });
  }
  const auto own = static_cast<size_t>(place.rank);
  builder.copy({BufferId::output, to[own], receive_counts[own]},
               {BufferId::input, from[own], send_counts[own]});
  return builder.build();
}

Schedule barrier_dissemination(const Place& place) {
  ScheduleBuilder builder;
  // What a round sends is what the one before received: so it waits for it.
  Range word = builder.scratch(1);
  for (int distance = 1; distance < place.world; distance *= 2) {
    builder.send(place.after(distance), word);
    word = builder.scratch(1);
    builder.receive(place.before(distance), word);
  }
  return builder.build();
}

}  // namespace rdmatx
