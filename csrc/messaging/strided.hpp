#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/export.hpp"

namespace rdmatx {

/// Where the elements of an array lie in memory, in row-major order: blocks of contiguous bytes, repeated
/// along dimensions by strides in bytes, which may be negative or zero. A message of the array is the dense
/// sequence of its elements in that order, so its two ends need not share strides.
///
/// Normalised: dimensions of one element are left out, those that continue each other are one, and elements
/// that lie one after another are one block. Owns no memory. Immutable; pure logic.
class RDMATX_API StridedLayout {
 public:
  struct Dimension {
    uint64_t count;
    int64_t stride;
  };
  enum class Overlap : uint8_t { none, some, unknown };

  /// `first` is the address of the element whose indices are all 0; shape and strides (in bytes) are of one
  /// length. Throws UsageError where the array has more bytes than an address can count.
  StridedLayout(void* first, uint64_t item_bytes, std::span<const int64_t> shape,
                std::span<const int64_t> strides);

  /// All in one block: memory like any other.
  bool is_dense() const noexcept { return dimensions_.empty(); }
  std::byte* first() const noexcept { return first_; }
  /// Of all elements, without what lies between them.
  uint64_t bytes() const noexcept { return blocks_ * block_bytes_; }
  uint64_t block_bytes() const noexcept { return block_bytes_; }
  uint64_t blocks() const noexcept { return blocks_; }
  std::span<const Dimension> dimensions() const noexcept { return dimensions_; }
  /// The range of memory from the lowest element to the end of the highest.
  std::byte* lowest() const noexcept;
  uint64_t extent() const noexcept;
  /// The addresses of all blocks, in order. Meant for few.
  std::vector<std::byte*> block_addresses() const;

  /// Whether two elements share memory: nothing may be received into such an array. `unknown` where finding
  /// out would take too long, which no array made by slicing, transposing or broadcasting meets.
  Overlap overlap() const;

  /// Copies all elements to bytes() of dense memory.
  void pack(std::byte* dense) const noexcept;
  /// Copies the first `bytes` bytes of dense memory to where they belong.
  void unpack(const std::byte* dense, uint64_t bytes) const noexcept;

 private:
  std::byte* first_;
  uint64_t block_bytes_;
  uint64_t blocks_ = 1;
  std::vector<Dimension> dimensions_;
};

}  // namespace rdmatx
