#include "soft/write_ways.hpp"

#include <array>

#include "check.hpp"

using rdmatx::soft::WriteWays;

namespace {

constexpr uint64_t size = 65536;

/// How many of `writes` went each way, where each way takes so many ns a write.
std::array<int, 2> carry(WriteWays& ways, int writes, uint64_t ring_ns, uint64_t copy_ns,
                         uint64_t bytes = size) {
  std::array<int, 2> went{};
  for (int i = 0; i < writes; ++i) {
    const WriteWays::Choice choice = ways.choose(bytes);
    ++went[choice.way];
    if (choice.timed) ways.took(choice.way, bytes, choice.way == WriteWays::ring ? ring_ns : copy_ns);
  }
  return went;
}

}  // namespace

TEST(the_faster_way_is_taken_and_the_other_tried_now_and_then) {
  WriteWays ways;
  auto went = carry(ways, 10'000, 2000, 6000);
  CHECK(went[WriteWays::copy] > 30 && went[WriteWays::copy] < 60);
  went = carry(ways, 10'000, 2000, 1000);  // and after a while it is found that this has changed
  CHECK(went[WriteWays::ring] < 1500);
  went = carry(ways, 10'000, 2000, 1000);
  CHECK(went[WriteWays::ring] > 30 && went[WriteWays::ring] < 60);
}

TEST(sizes_are_told_apart) {
  WriteWays ways;
  carry(ways, 1000, 1000, 9000, 16384);
  carry(ways, 1000, 9000, 1000, 1 << 20);
  CHECK(carry(ways, 100, 1000, 9000, 16384)[WriteWays::ring] >= 99);
  CHECK(carry(ways, 100, 9000, 1000, 1 << 20)[WriteWays::copy] >= 99);
}

TEST(one_slow_write_changes_little) {
  WriteWays ways;
  carry(ways, 1000, 2000, 3000);
  ways.took(WriteWays::ring, size, 4'000'000);  // the processor was somebody else's
  carry(ways, 100, 2000, 3000);
  CHECK(carry(ways, 200, 2000, 3000)[WriteWays::ring] > 190);
}

TEST(the_ring_is_taken_until_it_is_known) {
  WriteWays ways;
  for (int i = 0; i < 1000; ++i) CHECK(ways.choose(size).way == WriteWays::ring);  // nobody says what it took
}

RDMATX_TEST_MAIN()
