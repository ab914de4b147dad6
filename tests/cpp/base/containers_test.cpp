#include <deque>
#include <memory>
#include <random>
#include <thread>

#include "base/recycling.hpp"
#include "base/ring.hpp"
#include "base/small_vector.hpp"
#include "check.hpp"

using namespace rdmatx;

TEST(a_ring_is_a_queue) {
  std::mt19937 random(1);
  Ring<std::unique_ptr<int>> ring;
  std::deque<int> model;
  for (int step = 0; step < 100000; ++step) {
    switch (random() % 6) {
      case 0:
      case 1:
        ring.push_back(std::make_unique<int>(step));
        model.push_back(step);
        break;
      case 2:
        ring.push_front(std::make_unique<int>(step));
        model.push_front(step);
        break;
      case 3:
      case 4:
        if (model.empty()) break;
        CHECK_EQ(*ring.front(), model.front());
        ring.pop_front();
        model.pop_front();
        break;
      default: {
        if (random() % 50 != 0) break;
        const auto odd = [](int value) { return value % 2 != 0; };
        CHECK_EQ(ring.erase_if([&](const auto& value) { return odd(*value); }), std::erase_if(model, odd));
      }
    }
    CHECK_EQ(ring.size(), model.size());
    CHECK_EQ(ring.empty(), model.empty());
    if (!model.empty()) CHECK_EQ(*ring.back(), model.back());
  }
  size_t place = 0;
  ring.for_each([&](const auto& value) { CHECK_EQ(*value, model[place++]); });
  ring.clear();
  CHECK(ring.empty());
}

TEST(a_ring_lets_go_at_once) {
  Ring<std::shared_ptr<int>> ring;
  const auto value = std::make_shared<int>(1);
  for (int i = 0; i < 10; ++i) ring.push_back(value);
  ring.pop_front();
  CHECK_EQ(value.use_count(), 10);
  ring.erase_if([](const auto&) { return true; });
  CHECK_EQ(value.use_count(), 1);
}

TEST(a_small_vector_grows_beyond_its_inside) {
  SmallVector<int, 2> list;
  CHECK(list.empty());
  for (int i = 0; i < 10; ++i) {
    list.push_back(i);
    CHECK_EQ(list.size(), static_cast<size_t>(i + 1));
    for (int j = 0; j <= i; ++j) CHECK_EQ(list[static_cast<size_t>(j)], j);
  }
  const SmallVector<int, 2> copied(std::vector<int>{7, 8, 9});
  CHECK_EQ(copied.size(), 3u);
  CHECK_EQ(copied.front(), 7);
}

TEST(blocks_are_used_again) {
  const auto make = [](int value) { return std::allocate_shared<int>(RecyclingAllocator<int>(), value); };
  int* first = nullptr;
  {
    const auto one = make(1);
    first = one.get();
  }
  const auto again = make(2);
  CHECK(again.get() == first);
  CHECK_EQ(*again, 2);
  // Freed by another thread, and more than are kept.
  std::vector<std::shared_ptr<int>> many;
  for (int i = 0; i < 1000; ++i) many.push_back(make(i));
  std::thread([&many] { many.clear(); }).join();
}

RDMATX_TEST_MAIN()
