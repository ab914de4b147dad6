// Groups whose ranks are threads of one process, each with a context of its own.

#include "collectives/group.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"

using namespace rdmatx;

namespace {

constexpr double patience = 30;

OperationMemory memory_of(std::vector<int64_t>& values) {
  return {values.data(), values.size() * sizeof(int64_t), {}, {}, {}, {}};
}

/// Runs `body(rank, group)` on every rank; what the ranks threw, "" where nothing.
std::vector<std::string> on_ranks(int world, const std::function<void(int, Group&)>& body,
                                  double timeout = patience) {
  std::vector<std::shared_ptr<Context>> contexts;
  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < world; ++rank) {
    contexts.push_back(std::make_shared<Context>(std::vector<std::string>{}, Provider::soft, patience));
    listeners.push_back(contexts.back()->listen("127.0.0.1:0"));
    addresses.push_back(listeners.back()->address());
  }
  std::vector<std::string> thrown(static_cast<size_t>(world));
  // No rank leaves while another may still need it.
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      std::shared_ptr<Group> group;
      try {
        group = Group::create(contexts[r], listeners[r], {rank, addresses, timeout, {}});
        body(rank, *group);
      } catch (const std::exception& error) {
        thrown[r] = error.what();
      }
      done.fetch_add(1);
      while (done < world) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (group) group->close();
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& context : contexts) context->close();
  return thrown;
}

void expect_none(const std::vector<std::string>& thrown) {
  for (size_t rank = 0; rank < thrown.size(); ++rank)
    if (!thrown[rank].empty()) throw std::runtime_error("rank " + std::to_string(rank) + ": " + thrown[rank]);
}

void expect_all(const std::vector<std::string>& thrown, const std::string& part) {
  for (size_t rank = 0; rank < thrown.size(); ++rank)
    if (thrown[rank].find(part) == std::string::npos)
      throw std::runtime_error("rank " + std::to_string(rank) + " lacks '" + part + "': " + thrown[rank]);
}

Call all_reduce_call(uint64_t count, Algorithm algorithm = Algorithm::automatic) {
  Call call;
  call.collective = Collective::all_reduce;
  call.type = DataType::int64;
  call.count = count;
  call.algorithm = algorithm;
  call.chunk_bytes = 4096;
  return call;
}

void check_all_reduce(Group& group, uint64_t count, Algorithm algorithm) {
  std::vector<int64_t> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<int64_t>(i) * (group.rank() + 1);
  group.run(all_reduce_call(count, algorithm), {}, memory_of(values), {});
  const int64_t ranks = group.world() * (group.world() + 1) / 2;
  for (uint64_t i = 0; i < count; ++i) CHECK_EQ(values[i], static_cast<int64_t>(i) * ranks);
}

}  // namespace

TEST(all_reduce_by_every_algorithm_and_world) {
  for (const int world : {1, 2, 3, 5}) {
    expect_none(on_ranks(world, [](int, Group& group) {
      for (const Algorithm algorithm : algorithms_of(Collective::all_reduce))
        for (const uint64_t count : {0u, 1u, 100u, 20000u}) check_all_reduce(group, count, algorithm);
    }));
  }
}

TEST(a_barrier_holds_back_until_the_last_rank) {
  std::atomic<int> came{0};
  expect_none(on_ranks(4, [&](int rank, Group& group) {
    for (int round = 1; round <= 20; ++round) {
      if (rank == round % 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      came.fetch_add(1);
      group.run({}, {}, {}, {});
      CHECK(came >= 4 * round);
      group.run({}, {}, {}, {});
    }
  }));
}

TEST(several_operations_are_carried_out_in_order_while_nobody_waits) {
  expect_none(on_ranks(3, [](int rank, Group& group) {
    std::vector<int64_t> values(5000, rank + 1);
    std::vector<CollectiveWork> works;
    for (int i = 0; i < 5; ++i)
      works.push_back(group.start(all_reduce_call(values.size()), {}, memory_of(values), {{}, true}));
    // Only looks; the group's own thread does the work.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!works.back().finished() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const CollectiveWork& work : works) work.wait({});
    int64_t expected = 6;
    for (int i = 1; i < 5; ++i) expected *= 3;
    for (const int64_t value : values) CHECK_EQ(value, expected);
  }));
}

TEST(calls_that_differ_end_on_all_ranks_with_both_descriptions) {
  const auto thrown = on_ranks(4, [](int rank, Group& group) {
    std::vector<int64_t> values(100, 1);
    check_all_reduce(group, 10, Algorithm::automatic);
    if (rank == 2) {
      Call call = all_reduce_call(100);
      call.operation = ReduceOperation::max;
      group.run(call, {}, memory_of(values), {});
    } else {
      group.run(all_reduce_call(100), {}, memory_of(values), {});
    }
    // A rank that got its result before it heard of it hears of it now.
    for (int i = 0; i < 100; ++i) group.run({}, {}, {}, {});
  });
  expect_all(thrown, "called different things");
  expect_all(thrown, "op max");
  expect_all(thrown, "op sum");
}

TEST(roots_that_differ_do_not_hang) {
  const auto thrown = on_ranks(3, [](int rank, Group& group) {
    std::vector<int64_t> values(10, rank);
    Call call = all_reduce_call(10);
    call.collective = Collective::broadcast;
    call.root = rank;
    group.run(call, {}, memory_of(values), {});
    for (int i = 0; i < 100; ++i) group.run({}, {}, {}, {});
  });
  expect_all(thrown, "called different things");
  expect_all(thrown, "root");
}

TEST(a_late_rank_is_named_on_all_others) {
  std::atomic<bool> over{false};
  const auto thrown = on_ranks(3, [&](int rank, Group& group) {
    check_all_reduce(group, 10, Algorithm::automatic);
    if (rank == 1) {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      check_all_reduce(group, 10, Algorithm::automatic);
    }
    std::vector<int64_t> values(10);
    try {
      group.run(all_reduce_call(10), {}, memory_of(values), 0.5);
    } catch (...) {
      over = true;
      throw;
    }
  });
  expect_all(thrown, "was not done within 0.5 s");
  expect_all(thrown, "waits for rank 1");
}

TEST(an_abort_ends_everything_on_all_ranks) {
  const auto thrown = on_ranks(3, [&](int rank, Group& group) {
    check_all_reduce(group, 10, Algorithm::automatic);
    std::vector<int64_t> values(10);
    std::thread other;
    if (rank == 1) {
      other = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        group.abort("enough");
      });
    }
    const auto join = [&] {
      if (other.joinable()) other.join();
    };
    try {
      if (rank != 2) group.run(all_reduce_call(10), {}, memory_of(values), {});
      // Rank 2 is not in a call: its group fails all the same.
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!group.failure() && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      group.run({}, {}, {}, {});
    } catch (...) {
      join();
      throw;
    }
    join();
  });
  expect_all(thrown, "enough");
}

TEST(a_rank_that_leaves_is_told_of_when_it_is_needed) {
  const auto thrown = on_ranks(2, [&](int rank, Group& group) {
    check_all_reduce(group, 10, Algorithm::automatic);
    if (rank == 1) group.close();
    std::vector<int64_t> values(10);
    group.run(all_reduce_call(10), {}, memory_of(values), {});
  });
  CHECK(thrown[0].find("has closed the group") != std::string::npos);
  CHECK(thrown[1].find("closed") != std::string::npos);
}

TEST(a_group_that_stays_incomplete_names_who_is_missing) {
  const auto context = std::make_shared<Context>(std::vector<std::string>{}, Provider::soft, patience);
  const auto listener = context->listen("127.0.0.1:0");
  const auto other = context->listen("127.0.0.1:0");
  CHECK_THROWS(TimeoutError, "rank 1",
               Group::create(context, listener, {0, {listener->address(), other->address()}, 0.2, {}}));
  context->close();
}

TEST(calls_that_make_no_sense_are_refused_before_anything_is_sent) {
  expect_none(on_ranks(2, [](int, Group& group) {
    std::vector<int64_t> values(10, 1);
    CHECK_THROWS(UsageError, "80 bytes, and 11 elements",
                 group.run(all_reduce_call(11), {}, memory_of(values), {}));
    Call call = all_reduce_call(10);
    call.collective = Collective::broadcast;
    call.root = 2;
    CHECK_THROWS(UsageError, "from 0 to 1", group.run(call, {}, memory_of(values), {}));
    call.root = 0;
    call.algorithm = Algorithm::ring;
    CHECK_THROWS(UsageError, "it has tree, chain", group.run(call, {}, memory_of(values), {}));
    check_all_reduce(group, 10, Algorithm::automatic);
  }));
}

TEST(messages_go_beside_collectives_and_keep_their_order) {
  expect_none(on_ranks(3, [](int rank, Group& group) {
    // Of all sizes, small ones first: nothing overtakes within a tag.
    constexpr size_t count = 40;
    const auto size = [](size_t i) { return i % 3 == 0 ? size_t{1} : 100 * i * i; };
    const int to = (rank + 1) % 3, from = (rank + 2) % 3;
    std::vector<std::vector<int64_t>> out(count), in(count);
    std::vector<MessageWork> works;
    for (size_t i = 0; i < count; ++i) {
      out[i].assign(size(i), static_cast<int64_t>(1000 * i) + rank);
      in[i].assign(size(i), -1);
      works.push_back(group.receive(memory_of(in[i]), from, i % 2, {{}, true}));
      works.push_back(group.send(memory_of(out[i]), to, i % 2, {{}, true}));
      if (i % 10 == 0) check_all_reduce(group, 1000, Algorithm::automatic);
    }
    for (const MessageWork& work : works) work.wait({});
    for (size_t i = 0; i < count; ++i) {
      for (const int64_t value : in[i]) CHECK_EQ(value, static_cast<int64_t>(1000 * i) + from);
      CHECK_EQ(works[2 * i].bytes(), size(i) * sizeof(int64_t));
      CHECK_EQ(works[2 * i].peer(), from);
    }
  }));
}

TEST(a_receive_from_any_rank_tells_who_sent) {
  for (const uint64_t count : {uint64_t{1}, uint64_t{10000}}) {
    expect_none(on_ranks(4, [&](int rank, Group& group) {
      std::vector<int64_t> values(count, rank);
      // Of the ranks in the middle too, who are connected neither to all above them nor to all below.
      for (int receiver = 0; receiver < 4; ++receiver) {
        if (rank != receiver) {
          group.send(memory_of(values), receiver, 5).wait({});
          continue;
        }
        int senders = 0;
        for (int i = 0; i < 3; ++i) {
          std::vector<int64_t> got(count, -1);
          const MessageWork work = group.receive(memory_of(got), {}, 5);
          work.wait({});
          CHECK(work.peer() != rank);
          for (const int64_t value : got) CHECK_EQ(value, work.peer());
          senders |= 1 << work.peer();
        }
        CHECK_EQ(senders, 0b1111 & ~(1 << rank));
      }
    }));
  }
}

TEST(a_message_that_does_not_fit_or_does_not_come_ends_alone) {
  for (const uint64_t count : {uint64_t{10}, uint64_t{10000}}) {
    expect_none(on_ranks(2, [&](int rank, Group& group) {
      std::vector<int64_t> values(count, rank);
      if (rank == 0) {
        std::vector<int64_t> less(count - 1);
        CHECK_THROWS(SizeMismatchError, "does not fit", group.receive(memory_of(less), 1, 1).wait({}));
        for (const std::optional<int> source : {std::optional<int>(1), std::optional<int>()})
          CHECK_THROWS(TimeoutError, "the group lives on",
                       group.receive(memory_of(values), source, 2, {0.1, false}).wait({}));
      } else if (count <= 1024) {
        group.send(memory_of(values), 0, 1).wait({});  // it is on its way: rank 0 alone learns of it
      } else {
        CHECK_THROWS(SizeMismatchError, "does not fit", group.send(memory_of(values), 0, 1).wait({}));
      }
      check_all_reduce(group, 100, Algorithm::automatic);
      if (rank == 1) group.send(memory_of(values), 0, 2).wait({});
      std::vector<int64_t> got(count);
      if (rank == 0) group.receive(memory_of(got), 1, 2).wait({});
      check_all_reduce(group, 100, Algorithm::automatic);
    }));
  }
}

TEST(a_rank_that_dies_or_leaves_ends_the_messages) {
  for (const std::optional<int> source : {std::optional<int>(1), std::optional<int>()}) {
    for (const bool aborts : {true, false}) {
      const auto thrown = on_ranks(2, [&](int rank, Group& group) {
        if (rank == 1) {
          if (aborts)
            group.abort("enough");
          else
            group.close();
          return;
        }
        std::vector<int64_t> values(10);
        group.receive(memory_of(values), source, 1).wait({});
      });
      CHECK(thrown[0].find(aborts ? "enough" : "closed the group") != std::string::npos);
      CHECK_EQ(thrown[1], "");
    }
  }
}

TEST(messages_that_make_no_sense_are_refused) {
  expect_none(on_ranks(2, [](int rank, Group& group) {
    std::vector<int64_t> values(10);
    CHECK_THROWS(UsageError, "this rank itself", group.send(memory_of(values), rank, 0));
    CHECK_THROWS(UsageError, "no rank 2", group.send(memory_of(values), 2, 0));
    CHECK_THROWS(UsageError, "no rank -1", group.send(memory_of(values), -1, 0));
    CHECK_THROWS(UsageError, "no rank -1", group.receive(memory_of(values), -1, 0));
    CHECK_THROWS(UsageError, "below 2**63", group.send(memory_of(values), 1 - rank, uint64_t{1} << 63));
    const MessageWork work = group.receive(memory_of(values), 1 - rank, 3);
    CHECK_THROWS(UsageError, "still pending", work.bytes());
    group.run({}, {}, {}, {});  // nobody has sent it yet
    group.send(memory_of(values), 1 - rank, 3).wait({});
    work.wait({});
  }));
  expect_none(on_ranks(1, [](int, Group& group) {
    std::vector<int64_t> values(10);
    CHECK_THROWS(UsageError, "no other rank", group.receive(memory_of(values), {}, 0));
  }));
}

TEST(what_was_called_tells_its_end_on_the_groups_own_thread) {
  expect_none(on_ranks(3, [&](int, Group& group) {
    const auto here = std::this_thread::get_id();
    std::vector<int64_t> values(5000, 1), more(10, 1);
    std::atomic<int> told{0};
    std::atomic<bool> elsewhere{true};
    std::atomic<bool> had_ended{false};
    const CollectiveWork work =
        group.start(all_reduce_call(values.size()), {}, memory_of(values), {{}, true});
    // It may call the group; what it starts runs once it has returned.
    work.at_end([&] {
      if (had_ended && std::this_thread::get_id() == here) elsewhere = false;
      group.start(all_reduce_call(more.size()), {}, memory_of(more), {{}, true}).at_end([&] { ++told; });
      ++told;
    });
    had_ended = true;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (told < 2 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK_EQ(told.load(), 2);
    CHECK(elsewhere.load());
    for (const int64_t value : more) CHECK_EQ(value, int64_t{3});
    // Of what has ended it is told at once, and as often as asked.
    work.at_end([&] { ++told; });
    CHECK_EQ(told.load(), 3);
  }));
}

TEST(a_failure_is_told_once_and_so_is_the_end_of_a_group) {
  for (const bool aborts : {true, false}) {
    std::atomic<int> told{0};
    std::atomic<bool> started{false};
    const auto wait_until = [](const std::function<bool()>& done) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!done() && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    expect_none(on_ranks(2, [&](int rank, Group& group) {
      if (rank == 1) {
        wait_until([&] { return started.load(); });
        if (aborts) group.abort("enough");
        return;
      }
      std::vector<int64_t> values(10, 1);
      std::vector<CollectiveWork> works;
      for (int i = 0; i < 3; ++i)
        works.push_back(group.start(all_reduce_call(10), {}, memory_of(values), {{}, true}));
      for (const CollectiveWork& work : works) work.at_end([&] { ++told; });
      started = true;
      if (!aborts) group.close();
      wait_until([&] { return told == 3; });
      for (const CollectiveWork& work : works) CHECK(work.finished());
    }));
    CHECK_EQ(told.load(), 3);
  }
}

TEST(the_last_of_a_group_may_be_given_up_where_its_end_is_told) {
  const auto context = std::make_shared<Context>(std::vector<std::string>{}, Provider::soft, patience);
  const auto listener = context->listen("127.0.0.1:0");
  const auto other_listener = context->listen("127.0.0.1:0");
  const std::vector<std::string> addresses{listener->address(), other_listener->address()};
  std::shared_ptr<Group> other;
  std::thread meeting([&] { other = Group::create(context, other_listener, {1, addresses, patience, {}}); });
  auto group = Group::create(context, listener, {0, addresses, patience, {}});
  meeting.join();
  std::atomic<bool> gone{false};
  const std::weak_ptr<Group> watched = group;
  std::vector<int64_t> values(10, 1), others(10, 1);
  {
    const CollectiveWork work = group->start(all_reduce_call(10), {}, memory_of(values), {{}, true});
    const auto last = std::make_shared<std::shared_ptr<Group>>(std::move(group));
    work.at_end([last, &gone] {
      last->reset();
      gone = true;
    });
  }
  CHECK(!gone);
  other->start(all_reduce_call(10), {}, memory_of(others), {{}, true}).wait({});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!gone && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(gone.load());
  CHECK(watched.expired());
  other->close();
  context->close();
}

RDMATX_TEST_MAIN()
