#include "messaging/planner.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "base/error.hpp"
#include "check.hpp"

using namespace rdmatx;

namespace {

constexpr uint64_t gib = uint64_t{1} << 30;
constexpr uint64_t sizes[] = {0,       1,           4095,        4096,    2 * gib - 1,
                              2 * gib, 2 * gib + 1, 4 * gib - 1, 4 * gib, 4 * gib + 1};

struct Walked {
  uint64_t works = 0;
  uint64_t bytes = 0;
  uint64_t signalled = 0;
  uint64_t longest_unsignalled = 0;
  bool inlined = false;
};

// Plans to the end and checks what holds for every plan: each byte once and in order on both sides, the
// limits kept.
Walked walk(std::vector<uint64_t> local, std::vector<uint64_t> remote, const TransferLimits& limits,
            TransferDirection direction = TransferDirection::write) {
  TransferPlan plan(local, remote, limits, direction);
  Walked walked;
  uint64_t local_at = 0;
  uint64_t remote_at = 0;
  uint64_t since = 0;
  bool last = false;
  const auto start_of = [](const std::vector<uint64_t>& parts, uint32_t part) {
    return std::accumulate(parts.begin(), parts.begin() + part, uint64_t{0});
  };
  while (auto work = plan.next()) {
    CHECK(!last);
    last = work->last;
    ++walked.works;
    CHECK(work->bytes <= limits.max_message_bytes);
    CHECK(work->entry_count <= limits.max_sge);
    uint64_t gathered = 0;
    for (uint32_t i = 0; i < work->entry_count; ++i) {
      const PlannedEntry& entry = work->entries[i];
      CHECK(entry.bytes > 0);
      CHECK_EQ(start_of(local, entry.part) + entry.offset, local_at);
      CHECK(entry.offset + entry.bytes <= local[entry.part]);
      local_at += entry.bytes;
      gathered += entry.bytes;
    }
    CHECK_EQ(gathered, work->bytes);
    if (work->bytes > 0) {
      CHECK_EQ(start_of(remote, work->remote_part) + work->remote_offset, remote_at);
      CHECK(work->remote_offset + work->bytes <= remote[work->remote_part]);
      remote_at += work->bytes;
    }
    if (work->inlined) CHECK(work->bytes <= limits.inline_bytes);
    walked.inlined |= work->inlined;
    since = work->signalled ? 0 : since + 1;
    walked.signalled += work->signalled;
    walked.longest_unsignalled = std::max(walked.longest_unsignalled, since);
  }
  CHECK(last);
  CHECK(plan.finished());
  walked.bytes = local_at;
  CHECK_EQ(local_at, std::accumulate(local.begin(), local.end(), uint64_t{0}));
  CHECK_EQ(remote_at, local_at);
  return walked;
}

}  // namespace

TEST(every_size_with_rxe_limits) {
  const TransferLimits limits{2 * gib, UINT64_MAX, 32, 256, 64};
  const uint64_t expected[] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 3};
  for (size_t i = 0; i < std::size(sizes); ++i) {
    const auto regions = plan_regions(sizes[i], limits);
    CHECK_EQ(regions.size(), sizes[i] ? 1u : 0u);
    CHECK_EQ(walk(regions, regions, limits).works, expected[i]);
  }
}

TEST(every_size_with_messages_of_8_mib) {
  const TransferLimits limits{8 << 20, UINT64_MAX, 1, 64, 0};
  for (uint64_t size : sizes) {
    const Walked walked = walk({size}, {size}, limits);
    CHECK_EQ(walked.works, std::max<uint64_t>(1, (size + (8 << 20) - 1) / (8 << 20)));
    CHECK(walked.longest_unsignalled < 64);
    CHECK(walked.signalled >= 1);
  }
}

TEST(every_size_with_small_registrations) {
  const TransferLimits limits{2 * gib, gib, 4, 256, 0};
  for (uint64_t size : sizes) {
    const auto regions = plan_regions(size, limits);
    CHECK_EQ(regions.size(), (size + gib - 1) / gib);
    CHECK(std::all_of(regions.begin(), regions.end(),
                      [](uint64_t bytes) { return bytes > 0 && bytes <= gib; }));
    walk(regions, regions, limits);
    // The other side may have cut its memory elsewhere.
    if (size > 3) walk(regions, {1, size - 3, 2}, limits);
  }
}

TEST(zero_bytes_are_one_empty_request) {
  TransferPlan plan({}, {}, {}, TransferDirection::write);
  const auto work = plan.next();
  CHECK(work.has_value());
  CHECK_EQ(work->bytes, 0u);
  CHECK(work->last);
  CHECK(work->signalled);
  CHECK(!work->inlined);
  CHECK(!plan.next().has_value());
}

TEST(a_read_is_never_inlined) {
  const TransferLimits limits{2 * gib, UINT64_MAX, 1, 16, 64};
  CHECK(walk({64}, {64}, limits).inlined);
  CHECK(!walk({65}, {65}, limits).inlined);
  CHECK(!walk({64}, {64}, limits, TransferDirection::read).inlined);
}

TEST(many_parts_are_gathered_within_max_sge) {
  const TransferLimits limits{1 << 20, UINT64_MAX, 3, 16, 0};
  CHECK_EQ(walk({10, 10, 10, 10, 10, 10, 10}, {70}, limits).works, 3u);
  CHECK_EQ(walk({10, 0, 10, 0, 0, 10}, {30}, limits).works, 1u);
}

TEST(a_queue_of_one_signals_everything) {
  const TransferLimits limits{100, UINT64_MAX, 1, 1, 0};
  const Walked walked = walk({1000}, {1000}, limits);
  CHECK_EQ(walked.signalled, walked.works);
}

TEST(random_parts_and_limits) {
  std::mt19937 random(7);
  const auto up_to = [&](uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random); };
  for (int round = 0; round < 2000; ++round) {
    const auto cut = [&](uint64_t total) {
      std::vector<uint64_t> parts;
      while (total > 0) {
        parts.push_back(up_to(total));
        total -= parts.back();
      }
      return parts;
    };
    const uint64_t total = up_to(5000);
    walk(cut(total), cut(total),
         {1 + up_to(2000), UINT64_MAX, static_cast<uint32_t>(1 + up_to(20)),
          static_cast<uint32_t>(1 + up_to(40)), static_cast<uint32_t>(up_to(100))});
  }
}

// Pieces of ranges, in any order, name the same bytes on both sides as those of the whole.
TEST(ranges_cover_what_the_whole_covers) {
  std::mt19937 random(3);
  const auto map = [](std::span<const uint64_t> local, std::span<const uint64_t> remote, TransferPlan plan,
                      std::vector<std::array<uint64_t, 4>>& bytes) {
    while (const auto work = plan.next()) {
      uint64_t at = work->offset;
      uint64_t there = work->remote_offset;
      for (uint32_t i = 0; i < work->entry_count; ++i) {
        CHECK(work->entries[i].offset + work->entries[i].bytes <= local[work->entries[i].part]);
        for (uint64_t j = 0; j < work->entries[i].bytes; ++j)
          bytes[at++] = {work->entries[i].part, work->entries[i].offset + j, work->remote_part, there++};
      }
      CHECK_EQ(at, work->offset + work->bytes);
      if (work->bytes > 0) CHECK(there <= remote[work->remote_part]);
    }
  };
  for (int round = 0; round < 300; ++round) {
    const uint64_t total = random() % 500;
    const auto cut = [&] {
      std::vector<uint64_t> parts;
      for (uint64_t left = total; left > 0; left -= parts.back()) parts.push_back(1 + random() % left);
      return parts;
    };
    const auto local = cut();
    const auto remote = cut();
    TransferLimits limits;
    limits.max_message_bytes = 1 + random() % 100;
    limits.max_sge = 1 + static_cast<uint32_t>(random() % 4);
    std::vector<std::array<uint64_t, 4>> whole(total), ranged(total);
    map(local, remote, TransferPlan(local, remote, limits, TransferDirection::write), whole);
    for (uint64_t begin = 0; begin < total;) {
      const uint64_t end = begin + 1 + random() % (total - begin);
      map(local, remote, TransferPlan(local, remote, limits, TransferDirection::read, {begin, end}), ranged);
      begin = end;
    }
    CHECK(whole == ranged);
  }
  const std::vector<uint64_t> ten{10};
  CHECK_THROWS(UsageError, "not within", TransferPlan(ten, ten, {}, TransferDirection::write, {5, 11}));
  TransferPlan none(ten, ten, {}, TransferDirection::write, {10, 10});
  CHECK_EQ(none.next()->bytes, 0u);
  CHECK(!none.next().has_value());
}

TEST(sides_that_differ_are_refused) {
  const std::vector<uint64_t> five{5};
  const std::vector<uint64_t> six{6};
  CHECK_THROWS(UsageError, "5 bytes on this side", TransferPlan(five, six, {}, TransferDirection::write));
}

RDMATX_TEST_MAIN()
