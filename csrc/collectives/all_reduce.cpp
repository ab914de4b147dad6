#include "collectives/all_reduce.hpp"

#include <algorithm>
#include <bit>

namespace rdmatx {
namespace {

// How many messages of a pipeline may be on their way before the first of them is reduced.
constexpr uint64_t pipeline_slots = 8;

/// Ranks of a world that is no power of two: of the first ones each even one leaves its part to the next
/// odd one, and gets the result from it.
struct Folding {
  explicit Folding(const Place& place)
      : power(static_cast<int>(std::bit_floor(static_cast<unsigned>(place.world)))),
        paired(2 * (place.world - power)),
        is_out(place.rank < paired && place.rank % 2 == 0),
        is_doubled(place.rank < paired && place.rank % 2 == 1),
        number(place.rank < paired ? place.rank / 2 : place.rank - paired / 2) {}

  int rank_of(int virtual_rank) const noexcept {
    return virtual_rank < paired / 2 ? 2 * virtual_rank + 1 : virtual_rank + paired / 2;
  }

  int power;        // ranks that take part
  int paired;       // ranks below it are pairs
  bool is_out;      // takes no part
  bool is_doubled;  // takes part for its neighbour, too
  int number;       // among those that take part
};

/// One all_reduce with the pieces that its algorithms share.
struct AllReduce {
  AllReduce(const Place& where, uint64_t elements)
      : place(where),
        fold(where),
        vector{BufferId::output, 0, elements},
        chunk(std::max<uint64_t>(1, std::min(where.chunk, elements))),
        slots(builder, chunk, pipeline_slots_for(elements)) {}

  uint64_t pipeline_slots_for(uint64_t elements) const noexcept {
    return std::min(pipeline_slots, elements / chunk + 1);
  }

  void send(int peer, const Range& range) {
    for_each_chunk(range, chunk, [&](const Range& part) { builder.send(peer, part); });
  }
  void receive(int peer, const Range& range) {
    for_each_chunk(range, chunk, [&](const Range& part) { builder.receive(peer, part); });
  }
  /// The lower rank's elements are the left ones, on both sides.
  void receive_and_reduce(int peer, const Range& range) {
    for_each_chunk(range, chunk, [&](const Range& part) {
      const Range arrived = slots.take(part.count);
      builder.receive(peer, arrived);
      if (peer < place.rank)
        builder.reduce(part, arrived, part);
      else
        builder.reduce(part, part, arrived);
    });
  }
  void fold_in() {
    if (fold.is_out) send(place.rank + 1, vector);
    if (fold.is_doubled) receive_and_reduce(place.rank - 1, vector);
  }
  void fold_out() {
    if (fold.is_out) receive(place.rank + 1, vector);
    if (fold.is_doubled) send(place.rank - 1, vector);
  }

  const Place place;
  const Folding fold;
  const Range vector;
  const uint64_t chunk;
  ScheduleBuilder builder;
  ScratchSlots slots;
};

}  // namespace

Schedule all_reduce_direct(const Place& place, uint64_t count) {
  ScheduleBuilder builder;
  const Range vector{BufferId::output, 0, count};
  std::vector<Range> parts(static_cast<size_t>(place.world), vector);
  for (int distance = 1; distance < place.world; ++distance) {
    const int source = place.before(distance);
    Range& part = parts[static_cast<size_t>(source)];
    part = builder.scratch(count);
    builder.send(place.after(distance), vector);
    builder.receive(source, part);
  }
  if (place.world == 1) {
    builder.finish(vector);
    return builder.build();
  }
  // Sums on the way go to scratch of their own where they must not overwrite this rank's part.
  Range sum = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    const Range target = last ? vector : i == 1 && place.world > 2 ? builder.scratch(count) : sum;
    builder.reduce(target, sum, parts[i]);
    sum = target;
  }
  builder.finish(vector);
  return builder.build();
}

Schedule all_reduce_recursive_doubling(const Place& place, uint64_t count) {
  AllReduce all(Place{place.rank, place.world, UINT64_MAX}, count);
  all.fold_in();
  if (!all.fold.is_out) {
    for (int distance = 1; distance < all.fold.power; distance *= 2) {
      const int peer = all.fold.rank_of(all.fold.number ^ distance);
      all.send(peer, all.vector);
      all.receive_and_reduce(peer, all.vector);
    }
    all.builder.finish(all.vector);
  }
  all.fold_out();
  return all.builder.build();
}

Schedule all_reduce_halving_doubling(const Place& place, uint64_t count) {
  AllReduce all(place, count);
  const auto offsets = even_offsets(count, all.fold.power);
  // Blocks [first, last) of the vector.
  const auto blocks = [&](int first, int last) {
    const uint64_t begin = offsets[static_cast<size_t>(first)];
    return Range{BufferId::output, begin, offsets[static_cast<size_t>(last)] - begin};
  };
  all.fold_in();
  if (!all.fold.is_out) {
    const int number = all.fold.number;
    const auto halves = [&](int distance, bool mine) {
      const int base = number / (2 * distance) * (2 * distance);
      const bool upper = ((number & distance) != 0) == mine;
      return blocks(base + (upper ? distance : 0), base + (upper ? 2 * distance : distance));
    };
    for (int distance = all.fold.power / 2; distance >= 1; distance /= 2) {
      const int peer = all.fold.rank_of(number ^ distance);
      all.send(peer, halves(distance, false));
      all.receive_and_reduce(peer, halves(distance, true));
    }
    all.builder.finish(blocks(number, number + 1));
    for (int distance = 1; distance < all.fold.power; distance *= 2) {
      const int peer = all.fold.rank_of(number ^ distance);
      all.send(peer, halves(distance, true));
      all.receive(peer, halves(distance, false));
    }
  }
  all.fold_out();
  return all.builder.build();
}

Schedule all_reduce_ring(const Place& place, uint64_t count) {
  AllReduce all(place, count);
  const auto offsets = even_offsets(count, place.world);
  const auto block = [&](int index) {
    const auto i = static_cast<size_t>((index % place.world + place.world) % place.world);
    return Range{BufferId::output, offsets[i], offsets[i + 1] - offsets[i]};
  };
  const int next = place.after(1);
  const int previous = place.before(1);
  for (int step = 0; step + 1 < place.world; ++step) {
    all.send(next, block(place.rank - step));
    // Whoever reduces a block first is on the left: it is one chain, whichever way it is written.
    for_each_chunk(block(place.rank - step - 1), all.chunk, [&](const Range& part) {
      const Range arrived = all.slots.take(part.count);
      all.builder.receive(previous, arrived);
      all.builder.reduce(part, arrived, part);
    });
  }
  all.builder.finish(block(place.rank + 1));
  for (int step = 0; step + 1 < place.world; ++step) {
    all.send(next, block(place.rank + 1 - step));
    all.receive(previous, block(place.rank - step));
  }
  return all.builder.build();
}

}  // namespace rdmatx
