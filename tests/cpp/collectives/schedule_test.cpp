// Every schedule, simulated for every world up to 17 and sizes from nothing on, with messages that are copied
// at once and messages that wait for their receive.

#include "collectives/schedule.hpp"

#include <cstring>
#include <functional>
#include <vector>

#include "check.hpp"
#include "collectives/all_gather.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/all_to_all.hpp"
#include "collectives/reduce_scatter.hpp"
#include "collectives/rooted.hpp"
#include "collectives/simulator.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int largest_world = 7;  // takes twelve to thirty times as long there
#else
constexpr int largest_world = 17;
#endif
constexpr uint64_t sizes[] = {0, 1, 3, 17, 100, 1000};
constexpr uint64_t chunks[] = {UINT64_MAX, 7};
constexpr Sending sendings[] = {Sending::eager, Sending::rendezvous, Sending::mixed};

Number element(int rank, uint64_t index) {
  const uint64_t exact = static_cast<uint64_t>(rank + 1) * 1000003 + index * 7919;
  return {exact, 1.0f / static_cast<float>(exact % 9973 + 1)};
}

std::vector<Number> vector_of(int rank, uint64_t count) {
  std::vector<Number> all;
  for (uint64_t i = 0; i < count; ++i) all.push_back(element(rank, i));
  return all;
}

uint64_t sum_at(int world, uint64_t index) {
  uint64_t sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += element(rank, index).exact;
  return sum;
}

// Blocks of all sizes, some of them empty.
std::vector<uint64_t> uneven(int world, uint64_t size) {
  std::vector<uint64_t> counts;
  for (int rank = 0; rank < world; ++rank)
    counts.push_back(size == 0 ? 0 : static_cast<uint64_t>(rank * 5 % 4) * size / 3);
  return counts;
}

uint64_t total(const std::vector<uint64_t>& counts) {
  uint64_t sum = 0;
  for (const uint64_t count : counts) sum += count;
  return sum;
}

void for_every_case(
    const std::function<void(int world, uint64_t size, uint64_t chunk, Sending sending)>& run) {
  for (int world = 1; world <= largest_world; ++world)
    for (const uint64_t size : sizes)
      for (const uint64_t chunk : chunks)
        for (const Sending sending : sendings) {
          try {
            run(world, size, chunk, sending);
          } catch (const std::exception& error) {
            throw std::runtime_error("world " + std::to_string(world) + ", " + std::to_string(size) +
                                     " elements, chunks of " + std::to_string(chunk) + ", sending " +
                                     std::to_string(static_cast<int>(sending)) + ": " + error.what());
          }
        }
}

std::vector<Schedule> schedules(int world, uint64_t chunk,
                                const std::function<Schedule(const Place&)>& make) {
  std::vector<Schedule> all;
  for (int rank = 0; rank < world; ++rank) all.push_back(make({rank, world, chunk}));
  return all;
}

void same_bits(const std::vector<Number>& one, const std::vector<Number>& other) {
  CHECK_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i)
    CHECK(std::memcmp(&one[i].rounded, &other[i].rounded, sizeof(float)) == 0);
}

void check_all_reduce(Schedule (*make)(const Place&, uint64_t)) {
  for_every_case([&](int world, uint64_t size, uint64_t chunk, Sending sending) {
    std::vector<RankMemory> memory;
    for (int rank = 0; rank < world; ++rank) memory.push_back({{}, vector_of(rank, size), {}});
    const auto made = schedules(world, chunk, [&](const Place& place) { return make(place, size); });
    // Averaged, so that what is divided twice or never shows.
    Simulator simulator(made, memory, sending, size + static_cast<uint64_t>(world), 3);
    simulator.run();
    Simulator again(made, memory, sending, size * 31 + 7, 3);
    again.run();
    for (int rank = 0; rank < world; ++rank) {
      const auto& output = simulator.memory(rank).output;
      for (uint64_t i = 0; i < size; ++i) CHECK_EQ(output[i].exact, sum_at(world, i) / 3);
      same_bits(output, simulator.memory(0).output);
      same_bits(output, again.memory(rank).output);
    }
  });
}

void check_reduce_scatter(Schedule (*make)(const Place&, const std::vector<uint64_t>&)) {
  for_every_case([&](int world, uint64_t size, uint64_t chunk, Sending sending) {
    const auto counts = uneven(world, size);
    const auto offsets = offsets_of(counts);
    std::vector<RankMemory> memory;
    for (int rank = 0; rank < world; ++rank)
      memory.push_back(
          {vector_of(rank, total(counts)), std::vector<Number>(counts[static_cast<size_t>(rank)]), {}});
    const auto made = schedules(world, chunk, [&](const Place& place) { return make(place, counts); });
    Simulator simulator(made, memory, sending, size, 3);
    simulator.run();
    for (int rank = 0; rank < world; ++rank) {
      const auto r = static_cast<size_t>(rank);
      for (uint64_t i = 0; i < counts[r]; ++i)
        CHECK_EQ(simulator.memory(rank).output[i].exact, sum_at(world, offsets[r] + i) / 3);
      // What was given is left as it was.
      for (uint64_t i = 0; i < total(counts); ++i)
        CHECK_EQ(simulator.memory(rank).input[i].exact, element(rank, i).exact);
    }
  });
}

void check_all_gather(Schedule (*make)(const Place&, const std::vector<uint64_t>&)) {
  for_every_case([&](int world, uint64_t size, uint64_t chunk, Sending sending) {
    const auto counts = uneven(world, size);
    const auto offsets = offsets_of(counts);
    std::vector<RankMemory> memory;
    for (int rank = 0; rank < world; ++rank)
      memory.push_back(
          {vector_of(rank, counts[static_cast<size_t>(rank)]), std::vector<Number>(total(counts)), {}});
    Simulator simulator(schedules(world, chunk, [&](const Place& place) { return make(place, counts); }),
                        memory, sending, size);
    simulator.run();
    for (int rank = 0; rank < world; ++rank)
      for (int source = 0; source < world; ++source)
        for (uint64_t i = 0; i < counts[static_cast<size_t>(source)]; ++i)
          CHECK_EQ(simulator.memory(rank).output[offsets[static_cast<size_t>(source)] + i].exact,
                   element(source, i).exact);
  });
}

void check_broadcast(Schedule (*make)(const Place&, uint64_t, int)) {
  for_every_case([&](int world, uint64_t size, uint64_t chunk, Sending sending) {
    for (const int root : {0, world / 2, world - 1}) {
      std::vector<RankMemory> memory;
      for (int rank = 0; rank < world; ++rank) memory.push_back({{}, vector_of(rank, size), {}});
      Simulator simulator(
          schedules(world, chunk, [&](const Place& place) { return make(place, size, root); }), memory,
          sending, size);
      simulator.run();
      for (int rank = 0; rank < world; ++rank)
        for (uint64_t i = 0; i < size; ++i)
          CHECK_EQ(simulator.memory(rank).output[i].exact, element(root, i).exact);
    }
  });
}

void check_reduce(Schedule (*make)(const Place&, uint64_t, int)) {
  for_every_case([&](int world, uint64_t size, uint64_t chunk, Sending sending) {
    for (const int root : {0, world / 2, world - 1}) {
      std::vector<RankMemory> memory;
      for (int rank = 0; rank < world; ++rank)
        memory.push_back({vector_of(rank, size), std::vector<Number>(rank == root ? size : 0), {}});
      Simulator simulator(
          schedules(world, chunk, [&](const Place& place) { return make(place, size, root); }), memory,
          sending, size, 3);
      simulator.run();
      for (uint64_t i = 0; i < size; ++i)
        CHECK_EQ(simulator.memory(root).output[i].exact, sum_at(world, i) / 3);
      for (int rank = 0; rank < world; ++rank)
        for (uint64_t i = 0; i < size; ++i)
          CHECK_EQ(simulator.memory(rank).input[i].exact, element(rank, i).exact);
    }
  });
}

}  // namespace

TEST(all_reduce_direct) {
  check_all_reduce(&all_reduce_direct);
}
TEST(all_reduce_recursive_doubling) {
  check_all_reduce(&all_reduce_recursive_doubling);
}
TEST(all_reduce_halving_doubling) {
  check_all_reduce(&all_reduce_halving_doubling);
}
TEST(all_reduce_ring) {
  check_all_reduce(&all_reduce_ring);
}
TEST(reduce_scatter_direct) {
  check_reduce_scatter(&reduce_scatter_direct);
}
TEST(reduce_scatter_ring) {
  check_reduce_scatter(&reduce_scatter_ring);
}
TEST(all_gather_direct) {
  check_all_gather(&all_gather_direct);
}
TEST(all_gather_dissemination) {
  check_all_gather(&all_gather_dissemination);
}
TEST(all_gather_ring) {
  check_all_gather(&all_gather_ring);
}
TEST(broadcast_tree) {
  check_broadcast(&broadcast_tree);
}
TEST(broadcast_chain) {
  check_broadcast(&broadcast_chain);
}
TEST(reduce_tree) {
  check_reduce(&reduce_tree);
}
TEST(reduce_chain) {
  check_reduce(&reduce_chain);
}

TEST(gather_and_scatter) {
  for_every_case([&](int world, uint64_t size, uint64_t chunk, Sending sending) {
    const auto counts = uneven(world, size);
    const auto offsets = offsets_of(counts);
    for (const int root : {0, world - 1}) {
      std::vector<RankMemory> memory;
      std::vector<RankMemory> back;
      for (int rank = 0; rank < world; ++rank) {
        const uint64_t own = counts[static_cast<size_t>(rank)];
        const uint64_t all = rank == root ? total(counts) : 0;
        memory.push_back({vector_of(rank, own), std::vector<Number>(all), {}});
        back.push_back({vector_of(rank, all), std::vector<Number>(own), {}});
      }
      Simulator gathering(
          schedules(world, chunk, [&](const Place& place) { return gather_direct(place, counts, root); }),
          memory, sending, size);
      gathering.run();
      Simulator scattering(
          schedules(world, chunk, [&](const Place& place) { return scatter_direct(place, counts, root); }),
          back, sending, size);
      scattering.run();
      for (int rank = 0; rank < world; ++rank) {
        const auto r = static_cast<size_t>(rank);
        for (uint64_t i = 0; i < counts[r]; ++i) {
          CHECK_EQ(gathering.memory(root).output[offsets[r] + i].exact, element(rank, i).exact);
          CHECK_EQ(scattering.memory(rank).output[i].exact, element(root, offsets[r] + i).exact);
        }
      }
    }
  });
}

TEST(all_to_all_uneven) {
  for_every_case([&](int world, uint64_t size, uint64_t chunk, Sending sending) {
    const auto count = [&](int from, int to) {
      return size == 0 ? 0 : static_cast<uint64_t>((from * 3 + to * 5) % 4) * size / 3;
    };
    std::vector<RankMemory> memory;
    std::vector<std::vector<uint64_t>> sends;
    std::vector<std::vector<uint64_t>> receives;
    for (int rank = 0; rank < world; ++rank) {
      std::vector<uint64_t> out, in;
      for (int other = 0; other < world; ++other) {
        out.push_back(count(rank, other));
        in.push_back(count(other, rank));
      }
      memory.push_back({vector_of(rank, total(out)), std::vector<Number>(total(in)), {}});
      sends.push_back(out);
      receives.push_back(in);
    }
    Simulator simulator(schedules(world, chunk,
                                  [&](const Place& place) {
                                    const auto r = static_cast<size_t>(place.rank);
                                    return all_to_all_direct(place, sends[r], receives[r]);
                                  }),
                        memory, sending, size);
    simulator.run();
    for (int rank = 0; rank < world; ++rank) {
      const auto in = offsets_of(receives[static_cast<size_t>(rank)]);
      for (int source = 0; source < world; ++source) {
        const auto out = offsets_of(sends[static_cast<size_t>(source)]);
        for (uint64_t i = 0; i < count(source, rank); ++i)
          CHECK_EQ(simulator.memory(rank).output[in[static_cast<size_t>(source)] + i].exact,
                   element(source, out[static_cast<size_t>(rank)] + i).exact);
      }
    }
  });
}

TEST(nobody_leaves_a_barrier_before_all_have_come) {
  for (int world = 1; world <= largest_world; ++world) {
    // Each rank's part of the schedule that must have gone before it can end reaches every other rank: with
    // one of them missing nobody gets through.
    for (int missing = 0; missing < world; ++missing) {
      std::vector<Schedule> made;
      for (int rank = 0; rank < world; ++rank)
        made.push_back(rank == missing ? Schedule() : barrier_dissemination({rank, world}));
      Simulator simulator(made, std::vector<RankMemory>(static_cast<size_t>(world)), Sending::eager, 1);
      if (world > 1) CHECK_THROWS(std::runtime_error, "nothing goes on", simulator.run());
    }
    std::vector<Schedule> made;
    for (int rank = 0; rank < world; ++rank) made.push_back(barrier_dissemination({rank, world}));
    Simulator simulator(made, std::vector<RankMemory>(static_cast<size_t>(world)), Sending::mixed, 2);
    simulator.run();
  }
}

TEST(steps_that_touch_the_same_elements_keep_their_order) {
  ScheduleBuilder builder;
  const Range vector{BufferId::output, 0, 10};
  builder.send(1, vector.part(0, 6));
  builder.receive(1, vector.part(4, 4));
  builder.send(2, vector.part(9, 1));
  builder.copy(vector.part(6, 2), vector.part(0, 2));
  const Schedule schedule = builder.build();
  ScheduleRun run(schedule);
  CHECK_EQ(run.next().value(), 0u);
  CHECK_EQ(run.next().value(), 2u);  // the receive waits for the send, and the copy for the receive
  CHECK(!run.next());
  run.ended(0);
  CHECK_EQ(run.next().value(), 1u);
  CHECK(!run.next());
  run.ended(1);
  CHECK_EQ(run.next().value(), 3u);
  run.ended(2);
  CHECK(!run.done());
  run.ended(3);
  CHECK(run.done());
}

TEST(messages_to_one_peer_are_started_in_order) {
  ScheduleBuilder builder;
  const Range vector{BufferId::output, 0, 10};
  builder.receive(1, vector.part(0, 2));
  builder.send(2, vector.part(0, 2));
  builder.send(2, vector.part(5, 2));
  const Schedule schedule = builder.build();
  ScheduleRun run(schedule);
  CHECK_EQ(run.next().value(), 0u);
  CHECK(!run.next());
  run.ended(0);
  CHECK_EQ(run.next().value(), 1u);
  CHECK_EQ(run.next().value(), 2u);
}

TEST(a_ring_takes_a_bounded_amount_of_scratch) {
  const Schedule schedule = all_reduce_ring({0, 4, 1000}, 1000000);
  CHECK(schedule.scratch_count() <= 8 * 1000);
}

RDMATX_TEST_MAIN()
