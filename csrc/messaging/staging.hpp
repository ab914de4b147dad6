#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/export.hpp"
#include "base/memory_owner.hpp"

namespace rdmatx {

/// Dense memory that an operation on a strided array moves its bytes through. What is in it is undefined.
/// Owns its pages, or rather borrows them from a pool that they go back to. Any thread.
class RDMATX_API Staging {
 public:
  /// At least `bytes` bytes. Throws Error where there is no memory.
  explicit Staging(uint64_t bytes);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::byte* data() const noexcept { return block_->data(); }
  /// Lives as long as the pool keeps the memory.
  const std::shared_ptr<MemoryOwner>& owner() const noexcept { return block_->owner(); }

  /// Memory as the pool holds it.
  class Block {
   public:
    explicit Block(size_t bytes);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    std::byte* data() const noexcept { return owner_->base(); }
    size_t bytes() const noexcept { return owner_->bytes(); }
    const std::shared_ptr<MemoryOwner>& owner() const noexcept { return owner_; }

   private:
    std::shared_ptr<MemoryOwner> owner_;
  };

 private:
  std::unique_ptr<Block> block_;
};

/// Gives the memory that is not in use back to the system.
RDMATX_API void trim_staging() noexcept;

}  // namespace rdmatx
