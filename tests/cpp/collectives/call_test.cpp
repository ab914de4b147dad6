// What is called: sizes, words, records that are equal where calls are, and the choice of the algorithm.

#include "collectives/call.hpp"

#include <cstdlib>

#include "base/error.hpp"
#include "check.hpp"

using namespace rdmatx;

namespace {

Call all_reduce(uint64_t count) {
  Call call;
  call.collective = Collective::all_reduce;
  call.type = DataType::float32;
  call.count = count;
  return call;
}

Algorithm chosen(Call call, int world, const TuningTable& table = {}) {
  choose_algorithm(call, world, table);
  return call.algorithm;
}

}  // namespace

TEST(buffers_have_the_sizes_that_a_collective_needs) {
  Call call = all_reduce(10);
  CHECK_EQ(call.input_count(1, 4), 0u);
  CHECK_EQ(call.output_count(1, 4), 10u);
  call.collective = Collective::reduce_scatter;
  CHECK_EQ(call.input_count(1, 4), 40u);
  CHECK_EQ(call.output_count(1, 4), 10u);
  call.counts = {1, 2, 3, 0};
  CHECK_EQ(call.input_count(2, 4), 6u);
  CHECK_EQ(call.output_count(2, 4), 3u);
  call.collective = Collective::gather;
  call.root = 2;
  CHECK_EQ(call.output_count(1, 4), 0u);
  CHECK_EQ(call.output_count(2, 4), 6u);
  CHECK_EQ(call.input_count(3, 4), 0u);
  call.collective = Collective::all_to_all;
  call.receive_counts = {5, 5, 5, 5};
  CHECK_EQ(call.input_count(0, 4), 6u);
  CHECK_EQ(call.output_count(0, 4), 20u);
}

TEST(words_name_what_matters) {
  Call call = all_reduce(1000);
  call.operation = ReduceOperation::max;
  CHECK_EQ(describe(call), "all_reduce of 1000 float32 elements, op max");
  call.collective = Collective::broadcast;
  call.root = 3;
  CHECK_EQ(describe(call), "broadcast of 1000 float32 elements, root 3");
  CHECK_EQ(describe(Call{}), "barrier");
}

TEST(records_are_equal_where_calls_are) {
  const CallRecord record = record_of(all_reduce(10), 1);
  CHECK(record == record_of(all_reduce(10), 1));
  CHECK_EQ(record.tag(), record_of(all_reduce(10), 1).tag());
  CHECK(record.tag() >> 63 == 1);
  Call other = all_reduce(10);
  other.root = 1;  // means nothing here
  CHECK(record == record_of(other, 1));
  const auto differs = [&](const Call& call, uint64_t sequence) {
    CHECK(!(record == record_of(call, sequence)));
    CHECK(record.tag() != record_of(call, sequence).tag());
  };
  differs(all_reduce(10), 2);
  differs(all_reduce(11), 1);
  other.type = DataType::int32;
  differs(other, 1);
  other = all_reduce(10);
  other.operation = ReduceOperation::min;
  differs(other, 1);
  other = all_reduce(10);
  other.chunk_bytes = 1;
  differs(other, 1);
  other = all_reduce(10);
  other.algorithm = Algorithm::ring;
  differs(other, 1);
}

TEST(blocks_of_an_uneven_all_to_all_may_differ_from_rank_to_rank) {
  Call call;
  call.collective = Collective::all_to_all;
  call.counts = {1, 2};
  Call other = call;
  other.counts = {5, 0};
  CHECK(record_of(call, 1) == record_of(other, 1));
  other.counts.clear();
  CHECK(!(record_of(call, 1) == record_of(other, 1)));
  call.collective = other.collective = Collective::all_gather;
  other.counts = {2, 1};
  CHECK(!(record_of(call, 1) == record_of(other, 1)));
}

TEST(little_goes_in_few_steps_and_much_around_the_ring) {
  CHECK(chosen(all_reduce(1), 4) == Algorithm::direct);
  CHECK(chosen(all_reduce(1), 64) == Algorithm::recursive_doubling);
  CHECK(chosen(all_reduce(1 << 24), 4) == Algorithm::ring);
  Call call = all_reduce(1);
  call.collective = Collective::barrier;
  CHECK(chosen(call, 4) == Algorithm::dissemination);
}

TEST(a_table_is_taken_by_world_and_bytes) {
  const TuningTable table{{Collective::all_reduce, 2, 4000, Algorithm::ring, 100},
                          {Collective::all_reduce, 2, 1 << 20, Algorithm::halving_doubling, 200},
                          {Collective::all_reduce, 8, 1 << 20, Algorithm::recursive_doubling, 300},
                          {Collective::broadcast, 2, 1 << 20, Algorithm::chain, 400}};
  CHECK(chosen(all_reduce(1000), 2, table) == Algorithm::ring);
  CHECK(chosen(all_reduce(1001), 2, table) == Algorithm::halving_doubling);
  CHECK(chosen(all_reduce(1000), 7, table) == Algorithm::ring);
  CHECK(chosen(all_reduce(1000), 100, table) == Algorithm::recursive_doubling);
  CHECK(chosen(all_reduce(1), 1, table) == chosen(all_reduce(1), 1));
  Call call = all_reduce(1001);
  choose_algorithm(call, 2, table);
  CHECK_EQ(call.chunk_bytes, 200u);
  // A line's chunks are of its algorithm.
  call = all_reduce(1001);
  call.algorithm = Algorithm::ring;
  choose_algorithm(call, 2, table);
  CHECK(call.chunk_bytes != 200);
  check_tuning(table);
  CHECK_THROWS(UsageError, "it has tree, chain",
               check_tuning({{Collective::broadcast, 1, 1, Algorithm::ring, 0}}));
}

TEST(the_environment_speaks_for_collectives_that_have_such_an_algorithm) {
  ::setenv("RDMATX_ALGORITHM", "ring", 1);
  const TuningTable table{{Collective::all_reduce, 1, 1 << 20, Algorithm::halving_doubling, 0}};
  CHECK(chosen(all_reduce(1), 4, table) == Algorithm::ring);
  Call call = all_reduce(1);
  call.collective = Collective::broadcast;
  CHECK(chosen(call, 4) == Algorithm::tree);
  call = all_reduce(1);
  call.algorithm = Algorithm::direct;
  CHECK(chosen(call, 4) == Algorithm::direct);
  ::setenv("RDMATX_ALGORITHM", "fastest", 1);
  CHECK_THROWS(UsageError, "it is one of automatic", chosen(all_reduce(1), 4));
  ::unsetenv("RDMATX_ALGORITHM");
}

TEST(names_go_both_ways) {
  for (int i = 0; i < collective_count; ++i) {
    const auto collective = static_cast<Collective>(i);
    CHECK(parse_collective(collective_name(collective)) == collective);
    for (const Algorithm algorithm : algorithms_of(collective))
      CHECK(parse_algorithm(algorithm_name(algorithm)) == algorithm);
  }
  CHECK(parse_algorithm("") == Algorithm::automatic);
  CHECK_THROWS(UsageError, "no collective", parse_collective("all_redeem"));
}

RDMATX_TEST_MAIN()
