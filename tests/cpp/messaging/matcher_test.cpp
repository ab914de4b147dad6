#include "messaging/matcher.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "check.hpp"
#include "messaging/credits.hpp"

using namespace rdmatx;
using IntMatcher = Matcher<int, int>;

TEST(receives_meet_messages_in_order) {
  IntMatcher matcher;
  for (int i = 0; i < 5; ++i) matcher.post(7, i);
  for (int i = 0; i < 5; ++i) CHECK_EQ(*matcher.take_posted(7), i);
  CHECK(!matcher.take_posted(7).has_value());
  for (int i = 0; i < 5; ++i) matcher.arrive(7, i);
  CHECK_EQ(matcher.arrived_count(), 5u);
  for (int i = 0; i < 5; ++i) CHECK_EQ(*matcher.take_arrived(7), i);
  CHECK_EQ(matcher.arrived_count(), 0u);
}

TEST(tags_do_not_mix) {
  IntMatcher matcher;
  matcher.post(1, 10);
  matcher.post(2, 20);
  CHECK(!matcher.take_posted(3).has_value());
  CHECK_EQ(*matcher.take_posted(2), 20);
  CHECK_EQ(*matcher.take_posted(1), 10);
  matcher.arrive(UINT64_MAX, 5);
  CHECK(!matcher.take_arrived(0).has_value());
  CHECK_EQ(*matcher.take_arrived(UINT64_MAX), 5);
}

TEST(a_receive_can_be_withdrawn_once) {
  IntMatcher matcher;
  for (int i = 0; i < 3; ++i) matcher.post(1, i);
  CHECK(matcher.withdraw(1, 1));
  CHECK(!matcher.withdraw(1, 1));
  CHECK(!matcher.withdraw(2, 0));
  CHECK_EQ(*matcher.take_posted(1), 0);
  CHECK_EQ(*matcher.take_posted(1), 2);
  CHECK_EQ(matcher.posted_count(), 0u);
}

TEST(many_tags_used_once_are_swept) {
  Matcher<std::unique_ptr<int>, int> matcher;
  for (uint64_t tag = 0; tag < 100000; ++tag) {
    matcher.post(tag, std::make_unique<int>(static_cast<int>(tag)));
    CHECK_EQ(**matcher.take_posted(tag), static_cast<int>(tag));
  }
  for (uint64_t tag = 0; tag < 1000; ++tag) matcher.arrive(tag, 1);
  for (uint64_t tag = 1000; tag-- > 0;) CHECK_EQ(*matcher.take_arrived(tag), 1);
}

TEST(draining_and_dropping) {
  IntMatcher matcher;
  std::vector<int> drained;
  for (int i = 0; i < 4; ++i) matcher.post(static_cast<uint64_t>(i), i);
  matcher.drain_posted([&](int posted) { drained.push_back(posted); });
  CHECK_EQ(drained.size(), 4u);
  CHECK_EQ(matcher.posted_count(), 0u);
  for (int i = 0; i < 10; ++i) matcher.arrive(1, i);
  matcher.drop_arrived([](int arrived) { return arrived % 2 == 0; });
  CHECK_EQ(matcher.arrived_count(), 5u);
  CHECK_EQ(*matcher.take_arrived(1), 1);
}

TEST(receives_of_any_tag_are_served_in_their_turn) {
  IntMatcher matcher;
  matcher.post(1, 10);
  matcher.post({}, 20);
  matcher.post(1, 30);
  matcher.post({}, 40);
  CHECK_EQ(*matcher.take_posted(2), 20);
  CHECK_EQ(*matcher.take_posted(1), 10);
  CHECK_EQ(*matcher.take_posted(1), 30);
  CHECK_EQ(*matcher.take_posted(1), 40);
  CHECK_EQ(matcher.posted_count(), 0u);
  matcher.post({}, 50);
  CHECK(matcher.withdraw({}, 50));
  CHECK(!matcher.withdraw({}, 50));
  CHECK(!matcher.take_posted(1).has_value());
}

TEST(any_takes_the_oldest_message_of_all_tags) {
  IntMatcher matcher;
  CHECK(matcher.peek_arrived({}) == nullptr);
  matcher.arrive(3, 1);
  matcher.arrive(1, 2);
  matcher.arrive(3, 3);
  matcher.arrive(2, 4);
  CHECK_EQ(*matcher.peek_arrived({}), 1);
  CHECK_EQ(*matcher.take_arrived(1), 2);
  CHECK_EQ(*matcher.take_arrived({}), 1);
  CHECK_EQ(*matcher.take_arrived({}), 3);
  CHECK_EQ(*matcher.take_arrived({}), 4);
  CHECK(!matcher.take_arrived({}).has_value());
}

// Against the plainest model there is: two lists in order, searched from the front.
TEST(any_sequence_matches_as_a_search_from_the_oldest_would) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    IntMatcher matcher;
    std::vector<std::pair<TagChoice, int>> posted;
    std::vector<std::pair<uint64_t, int>> arrived;
    for (int step = 0; step < 200; ++step) {
      const uint64_t tag = random() % 4;
      if (random() % 2 == 0) {
        const TagChoice choice = random() % 3 == 0 ? TagChoice{} : TagChoice{tag};
        const auto found = std::find_if(arrived.begin(), arrived.end(), [&](const auto& message) {
          return !choice || message.first == *choice;
        });
        const auto taken = matcher.take_arrived(choice);
        CHECK_EQ(taken.has_value(), found != arrived.end());
        if (taken) {
          CHECK_EQ(*taken, found->second);
          arrived.erase(found);
        } else {
          matcher.post(choice, step);
          posted.emplace_back(choice, step);
        }
      } else if (!posted.empty() && random() % 5 == 0) {
        const auto withdrawn = posted.begin() + static_cast<std::ptrdiff_t>(random() % posted.size());
        CHECK(matcher.withdraw(withdrawn->first, withdrawn->second));
        posted.erase(withdrawn);
      } else {
        const auto found = std::find_if(posted.begin(), posted.end(), [&](const auto& receive) {
          return !receive.first || *receive.first == tag;
        });
        const auto taken = matcher.take_posted(tag);
        CHECK_EQ(taken.has_value(), found != posted.end());
        if (taken) {
          CHECK_EQ(*taken, found->second);
          posted.erase(found);
        } else {
          matcher.arrive(tag, step);
          arrived.emplace_back(tag, step);
        }
      }
      CHECK_EQ(matcher.posted_count(), posted.size());
      CHECK_EQ(matcher.arrived_count(), arrived.size());
    }
  }
}

// Two sides with credits and a receiver that takes its time: no slot is ever missing, and nothing gets stuck.
TEST(credits_never_overrun_and_never_stall) {
  std::mt19937 random(11);
  static constexpr SlotCounts slots{8, 4};
  for (int round = 0; round < 200; ++round) {
    struct Side {
      Credits credits{slots, slots};
      std::vector<char> inbox;  // kinds of message in the slots: d(ata), c(ontrol), r(eturn)
      std::vector<Credits::Returned> inbox_credits;
      int sent = 0;
    } sides[2];
    const auto post = [&](Side& from, Side& to, char kind) {
      to.inbox.push_back(kind);
      to.inbox_credits.push_back(from.credits.collect());
      CHECK(to.inbox.size() <= slots.total());
      CHECK(std::count(to.inbox.begin(), to.inbox.end(), 'r') <= 4);
    };
    int idle = 0;
    while (sides[0].sent < 300 || sides[1].sent < 300) {
      const int who = static_cast<int>(random() % 2);
      Side& me = sides[who];
      Side& peer = sides[1 - who];
      const bool handle = !me.inbox.empty() && random() % 3 == 0;
      if (handle) {
        const char kind = me.inbox.front();
        me.credits.receive(me.inbox_credits.front().data, me.inbox_credits.front().control);
        me.inbox.erase(me.inbox.begin());
        me.inbox_credits.erase(me.inbox_credits.begin());
        if (kind == 'd') me.credits.owe_data();
        if (kind == 'c') me.credits.owe_control();
        if (me.credits.due()) post(me, peer, 'r');
        idle = 0;
      } else if (me.sent < 300 && random() % 2 == 0 && me.credits.has_data()) {
        me.credits.spend_data();
        ++me.sent;
        post(me, peer, 'd');
        idle = 0;
      } else if (me.credits.has_control() && me.sent < 300) {
        me.credits.spend_control();
        post(me, peer, 'c');
        idle = 0;
      } else {
        CHECK(++idle < 10000);
      }
    }
  }
}

RDMATX_TEST_MAIN()
