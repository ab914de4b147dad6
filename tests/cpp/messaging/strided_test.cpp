#include "messaging/strided.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"

using namespace rdmatx;
using Overlap = StridedLayout::Overlap;

namespace {

/// An array described in the plainest way, and what one would get by walking its indices.
struct Plain {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  uint64_t item = 1;

  std::vector<int64_t> offsets() const {
    std::vector<int64_t> all{0};
    for (size_t i = 0; i < shape.size(); ++i) {
      std::vector<int64_t> next;
      for (int64_t offset : all)
        for (int64_t k = 0; k < shape[i]; ++k) next.push_back(offset + k * strides[i]);
      all = next;
    }
    return all;
  }
  int64_t lowest() const {
    int64_t low = 0;
    for (size_t i = 0; i < shape.size(); ++i) low += std::min<int64_t>(0, (shape[i] - 1) * strides[i]);
    return low;
  }
  int64_t highest() const {
    int64_t high = 0;
    for (size_t i = 0; i < shape.size(); ++i) high += std::max<int64_t>(0, (shape[i] - 1) * strides[i]);
    return high + static_cast<int64_t>(item);
  }
  bool shares_memory() const {
    std::set<int64_t> seen;
    for (int64_t offset : offsets())
      for (uint64_t byte = 0; byte < item; ++byte)
        if (!seen.insert(offset + static_cast<int64_t>(byte)).second) return true;
    return false;
  }
  bool empty() const { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }
};

Plain random_array(std::mt19937_64& random, bool any_strides) {
  Plain array;
  constexpr uint64_t items[] = {1, 2, 3, 4, 8, 12, 16, 24};
  array.item = items[random() % 8];
  const size_t dimensions = random() % 5;
  std::vector<size_t> order(dimensions);
  for (size_t i = 0; i < dimensions; ++i) {
    order[i] = i;
    array.shape.push_back(static_cast<int64_t>(random() % 40 < 2 ? random() % 2 : 1 + random() % 7));
  }
  array.strides.resize(dimensions);
  if (any_strides) {
    for (int64_t& stride : array.strides) stride = static_cast<int64_t>(random() % 61) - 30;
    return array;
  }
  // As by slicing and transposing: some order of the dimensions, with gaps, some backwards.
  std::shuffle(order.begin(), order.end(), random);
  auto next = static_cast<int64_t>(array.item);
  for (size_t i : order) {
    const auto gap = static_cast<int64_t>(random() % 3 == 0 ? 1 + random() % 3 : 1);
    array.strides[i] = next * gap * (random() % 4 == 0 ? -1 : 1);
    next *= gap * std::max<int64_t>(1, array.shape[i]);
  }
  return array;
}

std::vector<std::byte> numbered(size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 37 + i / 251);
  return made;
}

}  // namespace

TEST(normal_forms) {
  std::byte memory[4096];
  const auto layout = [&](std::vector<int64_t> shape, std::vector<int64_t> strides) {
    return StridedLayout(memory, 4, shape, strides);
  };
  CHECK(layout({}, {}).is_dense());
  CHECK_EQ(layout({}, {}).bytes(), 4u);
  CHECK(layout({3, 4}, {16, 4}).is_dense());
  CHECK_EQ(layout({3, 4}, {16, 4}).block_bytes(), 48u);
  CHECK(layout({1, 4, 1}, {999, 4, -7}).is_dense());
  CHECK(layout({0, 4}, {1, 1}).is_dense());
  CHECK_EQ(layout({4, 0}, {1, 1}).bytes(), 0u);
  const StridedLayout rows = layout({3, 2, 4}, {64, 16, 4});  // half of each row
  CHECK_EQ(rows.block_bytes(), 32u);
  CHECK_EQ(rows.dimensions().size(), 1u);
  const StridedLayout transposed = layout({4, 3}, {4, 16});
  CHECK_EQ(transposed.block_bytes(), 4u);
  CHECK_EQ(transposed.dimensions().size(), 2u);
  const StridedLayout column = layout({5, 2, 3}, {96, 48, 16});  // continues: one dimension of 30
  CHECK_EQ(column.dimensions().size(), 1u);
  CHECK_EQ(column.dimensions()[0].count, 30u);
  CHECK_EQ(layout({8}, {-4}).lowest() - memory, -28);
  CHECK_EQ(layout({8}, {-4}).extent(), 32u);
  CHECK_THROWS(UsageError, "memory can hold", layout({1ll << 40, 1ll << 40}, {0, 0}));
}

TEST(packing_and_unpacking_are_walking_the_indices) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 4000; ++round) {
    const Plain array = random_array(random, round % 4 == 0);
    const auto below = static_cast<size_t>(-array.lowest());
    std::vector<std::byte> memory =
        numbered(array.empty() ? 64 : below + static_cast<size_t>(array.highest()));
    const StridedLayout layout(memory.data() + (array.empty() ? 0 : below), array.item, array.shape,
                               array.strides);
    const auto offsets = array.offsets();
    CHECK_EQ(layout.bytes(), offsets.size() * array.item);
    if (!array.empty()) {
      CHECK(layout.lowest() == memory.data());
      CHECK_EQ(layout.extent(), memory.size());
    }
    std::vector<std::byte> expected, packed(layout.bytes());
    for (int64_t offset : offsets)
      for (uint64_t byte = 0; byte < array.item; ++byte)
        expected.push_back(layout.first()[offset + static_cast<int64_t>(byte)]);
    layout.pack(packed.data());
    CHECK(packed == expected);
    if (layout.blocks() > 0) {
      std::vector<std::byte> by_blocks;
      for (const std::byte* block : layout.block_addresses())
        by_blocks.insert(by_blocks.end(), block, block + layout.block_bytes());
      CHECK(by_blocks == expected);
    }
    if (array.shares_memory()) continue;
    // A part arrives, also one that ends within an element.
    const uint64_t come = random() % 3 == 0 ? layout.bytes() : random() % (layout.bytes() + 1);
    std::vector<std::byte> fresh = numbered(packed.size() + 9);
    std::reverse(fresh.begin(), fresh.end());
    std::vector<std::byte> wanted = memory;
    for (uint64_t i = 0; i < come; ++i) {
      const int64_t at = offsets[i / array.item] + static_cast<int64_t>(i % array.item);
      wanted[static_cast<size_t>(layout.first() - memory.data() + at)] = fresh[i];
    }
    layout.unpack(fresh.data(), come);
    CHECK(memory == wanted);
  }
}

TEST(large_transposes) {
  for (const uint64_t item : {1u, 2u, 4u, 8u, 16u, 6u}) {
    const int64_t rows = 133, columns = 201;
    const auto size = static_cast<int64_t>(item);
    const std::vector<std::byte> memory = numbered(static_cast<size_t>(rows * columns * size));
    std::vector<std::byte> source = memory, packed(source.size()), back(source.size());
    const StridedLayout layout(source.data(), item, std::vector{columns, rows},
                               std::vector{size, size * columns});
    layout.pack(packed.data());
    for (int64_t i = 0; i < columns; ++i)
      for (int64_t j = 0; j < rows; ++j)
        CHECK(std::memcmp(packed.data() + (i * rows + j) * size, source.data() + (j * columns + i) * size,
                          item) == 0);
    StridedLayout(back.data(), item, std::vector{columns, rows}, std::vector{size, size * columns})
        .unpack(packed.data(), packed.size());
    CHECK(back == memory);
  }
}

TEST(overlap_is_told_exactly) {
  std::mt19937_64 random(2);
  int sharing = 0, apart = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Plain array = random_array(random, round % 2 == 0);
    std::byte memory[1];
    const StridedLayout layout(memory, array.item, array.shape, array.strides);
    const bool shares = !array.empty() && array.shares_memory();
    ++(shares ? sharing : apart);
    CHECK(layout.overlap() == (shares ? Overlap::some : Overlap::none));
  }
  CHECK(sharing > 1000 && apart > 1000);
}

TEST(overlap_of_what_people_make) {
  std::byte memory[1];
  const auto overlap = [&](std::vector<int64_t> shape, std::vector<int64_t> strides) {
    return StridedLayout(memory, 4, shape, strides).overlap();
  };
  CHECK(overlap({1 << 20, 1 << 20}, {4, 4 << 20}) == Overlap::none);  // a huge transpose
  CHECK(overlap({1000, 1000, 1000}, {0, 4000, 4}) == Overlap::some);  // expanded
  CHECK(overlap({1 << 20, 64}, {4, 4}) == Overlap::some);             // a sliding window
  CHECK(overlap({2, 3}, {12, 8}) == Overlap::none);                   // interleaved, yet apart
  CHECK(overlap({1 << 20, 1 << 20, 1 << 20}, {8, 12, 20}) == Overlap::unknown);
}

RDMATX_TEST_MAIN()
