#include "collectives/all_gather.hpp"

#include <algorithm>

namespace rdmatx {
namespace {

/// One all_gather with what its algorithms share. The caller's input may be its own block of the output.
struct AllGather {
  AllGather(const Place& where, const std::vector<uint64_t>& of) : place(where), counts(of) {
    builder.copy(block(place.rank), own());
  }

  Range own() const { return {BufferId::input, 0, counts[static_cast<size_t>(place.rank)]}; }
  Range block(int index) const {
    const auto i = static_cast<size_t>((index % place.world + place.world) % place.world);
    return {BufferId::output, offsets[i], counts[i]};
  }
  void send(int peer, const Range& range) {
    for_each_chunk(range, place.chunk, [&](const Range& part) { builder.send(peer, part); });
  }
  void receive(int peer, const Range& range) {
    for_each_chunk(range, place.chunk, [&](const Range& part) { builder.receive(peer, part); });
  }

  const Place place;
  const std::vector<uint64_t>& counts;
  const std::vector<uint64_t> offsets = offsets_of(counts);
  ScheduleBuilder builder;
};

}  // namespace

Schedule all_gather_direct(const Place& place, const std::vector<uint64_t>& counts) {
  AllGather all(place, counts);
  for (int distance = 1; distance < place.world; ++distance) {
    all.send(place.after(distance), all.own());
    all.receive(place.before(distance), all.block(place.rank - distance));
  }
  return all.builder.build();
}

Schedule all_gather_dissemination(const Place& place, const std::vector<uint64_t>& counts) {
  AllGather all(place, counts);
  // This rank has the blocks of `distance` ranks from itself on.
  for (int distance = 1; distance < place.world; distance *= 2) {
    const int more = std::min(distance, place.world - distance);
    for (int i = 0; i < more; ++i) {
      all.send(place.before(distance), all.block(place.rank + i));
      all.receive(place.after(distance), all.block(place.rank + distance + i));
    }
  }
  return all.builder.build();
}

Schedule all_gather_ring(const Place& place, const std::vector<uint64_t>& counts) {
  AllGather all(place, counts);
  for (int step = 0; step + 1 < place.world; ++step) {
    all.send(place.after(1), step == 0 ? all.own() : all.block(place.rank - step));
    all.receive(place.before(1), all.block(place.rank - step - 1));
  }
  return all.builder.build();
}

}  // namespace rdmatx
