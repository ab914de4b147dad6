#include "messaging/strided.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.hpp"

namespace rdmatx {
namespace {

using Dimension = StridedLayout::Dimension;
using Overlap = StridedLayout::Overlap;

uint64_t magnitude(int64_t stride) noexcept {
  return stride < 0 ? uint64_t{0} - static_cast<uint64_t>(stride) : static_cast<uint64_t>(stride);
}

uint64_t product(uint64_t left, uint64_t right) {
  uint64_t result = 0;
  if (__builtin_mul_overflow(left, right, &result) || result > static_cast<uint64_t>(INT64_MAX))
    throw UsageError("an array of " + std::to_string(left) + " times " + std::to_string(right) +
                     " bytes has more than memory can hold");
  return result;
}

// ---- copying

enum class Way : uint8_t { pack, unpack };

/// A dimension on both sides of a copy.
struct Step {
  uint64_t count;
  int64_t stride;   // between the elements where they lie
  uint64_t packed;  // between them in the dense sequence
};

// A fixed size is a load and a store; 0 is a size known when it runs.
template <Way way, size_t fixed>
inline void copy_block(std::byte* placed, std::byte* dense, size_t bytes) noexcept {
  const size_t size = fixed != 0 ? fixed : bytes;
  if constexpr (way == Way::pack)
    std::memcpy(dense, placed, size);
  else
    std::memcpy(placed, dense, size);
}

template <Way way, size_t fixed>
void copy_row(std::byte* placed, std::byte* dense, const Step& row, size_t bytes) noexcept {
  for (uint64_t i = 0; i < row.count; ++i, placed += row.stride, dense += row.packed)
    copy_block<way, fixed>(placed, dense, bytes);
}

// Neighbours along `across` lie near each other, those along `along` are dense: tile by tile, so that a line
// of the cache that was fetched for one element still is there for its neighbours.
template <Way way, size_t fixed>
void copy_tiles(std::byte* placed, std::byte* dense, const Step& across, const Step& along,
                size_t bytes) noexcept {
  constexpr uint64_t tile = fixed != 0 && fixed <= 4 ? 32 : 16;
  for (uint64_t i = 0; i < across.count; i += tile) {
    const Step tall{std::min(tile, across.count - i), across.stride, across.packed};
    for (uint64_t j = 0; j < along.count; j += tile) {
      const Step wide{std::min(tile, along.count - j), along.stride, along.packed};
      std::byte* from =
          placed + static_cast<int64_t>(i) * across.stride + static_cast<int64_t>(j) * along.stride;
      std::byte* to = dense + i * across.packed + j * along.packed;
      for (uint64_t k = 0; k < tall.count; ++k, from += tall.stride, to += tall.packed)
        copy_row<way, fixed>(from, to, wide, bytes);
    }
  }
}

/// Copies whole arrays. The steps are the dimensions, outermost first; at least one.
template <Way way, size_t fixed>
class Copier {
 public:
  Copier(std::vector<Step> steps, size_t bytes) : outer_(std::move(steps)), bytes_(bytes) {
    along_ = outer_.back();
    outer_.pop_back();
    // Small elements whose neighbours in memory belong to another dimension than the dense one.
    if (bytes_ > 16 || outer_.empty()) return;
    const auto nearest = std::min_element(
        outer_.begin(), outer_.end(),
        [](const Step& left, const Step& right) { return magnitude(left.stride) < magnitude(right.stride); });
    if (magnitude(nearest->stride) >= magnitude(along_.stride)) return;
    across_ = *nearest;
    outer_.erase(nearest);
  }
  void copy(std::byte* placed, std::byte* dense, size_t level = 0) const noexcept {
    if (level < outer_.size()) {
      const Step& step = outer_[level];
      for (uint64_t i = 0; i < step.count; ++i, placed += step.stride, dense += step.packed)
        copy(placed, dense, level + 1);
    } else if (across_.count > 0) {
      copy_tiles<way, fixed>(placed, dense, across_, along_, bytes_);
    } else {
      copy_row<way, fixed>(placed, dense, along_, bytes_);
    }
  }

 private:
  std::vector<Step> outer_;
  Step across_{0, 0, 0};
  Step along_{0, 0, 0};
  size_t bytes_;
};

template <Way way>
void copy_dense_order(std::byte* placed, std::byte* dense, std::span<const Dimension> dimensions,
                      size_t block) noexcept {
  if (dimensions.empty()) return copy_block<way, 0>(placed, dense, block);
  std::vector<Step> steps;
  uint64_t packed = block;
  for (const Dimension& dimension : dimensions) packed *= dimension.count;
  for (const Dimension& dimension : dimensions) {
    packed /= dimension.count;
    steps.push_back({dimension.count, dimension.stride, packed});
  }
  switch (block) {
    case 1:
      return Copier<way, 1>(std::move(steps), block).copy(placed, dense);
    case 2:
      return Copier<way, 2>(std::move(steps), block).copy(placed, dense);
    case 4:
      return Copier<way, 4>(std::move(steps), block).copy(placed, dense);
    case 8:
      return Copier<way, 8>(std::move(steps), block).copy(placed, dense);
    case 16:
      return Copier<way, 16>(std::move(steps), block).copy(placed, dense);
    default:
      return Copier<way, 0>(std::move(steps), block).copy(placed, dense);
  }
}

// ---- overlap

// Differences of indices to try; a second's work at most, far less for arrays that people make.
constexpr uint64_t overlap_budget = uint64_t{1} << 22;

/// Whether blocks at two different indices of these dimensions share bytes. No stride is shorter than a
/// block. Two blocks share bytes where the difference of their addresses is less than a block: all
/// differences of indices are tried but those of the longest dimension, for which a division tells.
class OverlapSearch {
 public:
  OverlapSearch(std::vector<Dimension> dimensions, uint64_t block) : block_(static_cast<int64_t>(block)) {
    std::sort(dimensions.begin(), dimensions.end(),
              [](const Dimension& left, const Dimension& right) { return left.count < right.count; });
    longest_ = dimensions.back();
    dimensions.pop_back();
    others_ = std::move(dimensions);
  }
  bool affordable() const noexcept {
    uint64_t work = 1;
    for (const Dimension& dimension : others_) {
      if (dimension.count > overlap_budget || (work *= 2 * dimension.count - 1) > overlap_budget)
        return false;
    }
    return true;
  }
  bool found() const noexcept { return found_below(0, 0, true); }

 private:
  bool found_below(size_t level, int64_t distance, bool same_indices) const noexcept {
    if (level == others_.size()) return !same_indices && longest_reaches(-distance);
    const Dimension& dimension = others_[level];
    const auto last = static_cast<int64_t>(dimension.count) - 1;
    for (int64_t i = -last; i <= last; ++i)
      if (found_below(level + 1, distance + i * dimension.stride, same_indices && i == 0)) return true;
    return false;
  }
  // Whether a multiple of the longest dimension's stride comes nearer to `target` than a block.
  bool longest_reaches(int64_t target) const noexcept {
    const auto last = static_cast<int64_t>(longest_.count) - 1;
    const int64_t nearest = target / longest_.stride;
    for (int64_t i = nearest - 1; i <= nearest + 1; ++i)
      if (i >= -last && i <= last && std::llabs(i * longest_.stride - target) < block_) return true;
    return false;
  }

  std::vector<Dimension> others_;
  Dimension longest_{1, 0};
  int64_t block_;
};

}  // namespace

StridedLayout::StridedLayout(void* first, uint64_t item_bytes, std::span<const int64_t> shape,
                             std::span<const int64_t> strides)
    : first_(static_cast<std::byte*>(first)), block_bytes_(item_bytes) {
  // From the innermost dimension outwards: each grows the block, continues the one inside it, or is new.
  for (size_t i = shape.size(); i-- > 0;) {
    const auto count = static_cast<uint64_t>(shape[i]);
    blocks_ = count == 0 ? 0 : product(blocks_, count);
    if (count == 1) continue;
    if (dimensions_.empty() && strides[i] == static_cast<int64_t>(block_bytes_)) {
      block_bytes_ = product(block_bytes_, count);
    } else if (!dimensions_.empty() &&
               strides[i] == dimensions_.back().stride * static_cast<int64_t>(dimensions_.back().count)) {
      dimensions_.back().count *= count;
    } else {
      dimensions_.push_back({count, strides[i]});
    }
    if (blocks_ == 0) break;
  }
  if (blocks_ == 0 || item_bytes == 0) {
    dimensions_.clear();
    block_bytes_ = 0;
    blocks_ = 0;
    return;
  }
  std::reverse(dimensions_.begin(), dimensions_.end());
  blocks_ = 1;
  for (const Dimension& dimension : dimensions_) blocks_ *= dimension.count;
  product(blocks_, block_bytes_);
}

std::byte* StridedLayout::lowest() const noexcept {
  std::byte* lowest = first_;
  for (const Dimension& dimension : dimensions_)
    if (dimension.stride < 0) lowest += static_cast<int64_t>(dimension.count - 1) * dimension.stride;
  return lowest;
}

uint64_t StridedLayout::extent() const noexcept {
  uint64_t bytes = block_bytes_;
  for (const Dimension& dimension : dimensions_) bytes += (dimension.count - 1) * magnitude(dimension.stride);
  return bytes;
}

std::vector<std::byte*> StridedLayout::block_addresses() const {
  std::vector<std::byte*> addresses{first_};
  addresses.reserve(blocks_);
  for (const Dimension& dimension : dimensions_) {
    std::vector<std::byte*> next;
    next.reserve(addresses.size() * dimension.count);
    for (std::byte* address : addresses)
      for (uint64_t i = 0; i < dimension.count; ++i)
        next.push_back(address + static_cast<int64_t>(i) * dimension.stride);
    addresses = std::move(next);
  }
  return addresses;
}

Overlap StridedLayout::overlap() const {
  std::vector<Dimension> rest = dimensions_;
  std::sort(rest.begin(), rest.end(), [](const Dimension& left, const Dimension& right) {
    return magnitude(left.stride) < magnitude(right.stride);
  });
  if (rest.empty()) return Overlap::none;
  if (magnitude(rest.front().stride) < block_bytes_) return Overlap::some;
  uint64_t reach = extent();
  // A dimension whose stride steps over all that the shorter ones reach keeps its blocks apart by itself.
  while (!rest.empty()) {
    const Dimension& outer = rest.back();
    reach -= (outer.count - 1) * magnitude(outer.stride);
    if (magnitude(outer.stride) < reach) break;
    rest.pop_back();
  }
  if (rest.empty()) return Overlap::none;
  const OverlapSearch search(std::move(rest), block_bytes_);
  if (!search.affordable()) return Overlap::unknown;
  return search.found() ? Overlap::some : Overlap::none;
}

void StridedLayout::pack(std::byte* dense) const noexcept {
  if (blocks_ > 0) copy_dense_order<Way::pack>(first_, dense, dimensions_, block_bytes_);
}

void StridedLayout::unpack(const std::byte* dense, uint64_t bytes) const noexcept {
  auto* from = const_cast<std::byte*>(dense);  // read only: the copy's other way writes it
  std::byte* to = first_;
  uint64_t slice = blocks_ * block_bytes_;
  if (bytes >= slice) {
    if (slice > 0) copy_dense_order<Way::unpack>(to, from, dimensions_, block_bytes_);
    return;
  }
  // The first whole slices of each dimension, then a part of the next one.
  for (size_t level = 0; level < dimensions_.size(); ++level) {
    Dimension whole = dimensions_[level];
    slice /= whole.count;
    whole.count = bytes / slice;
    if (whole.count > 0) {
      std::vector<Dimension> slices{whole};
      slices.insert(slices.end(), dimensions_.begin() + static_cast<int64_t>(level) + 1, dimensions_.end());
      copy_dense_order<Way::unpack>(to, from, slices, block_bytes_);
    }
    to += static_cast<int64_t>(whole.count) * whole.stride;
    from += whole.count * slice;
    bytes -= whole.count * slice;
  }
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace rdmatx
