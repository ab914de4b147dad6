#include "messaging/staging.hpp"

#include <cstdlib>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/size_class_pool.hpp"

namespace rdmatx {
namespace {

constexpr size_t page_bytes = 4096;
using Pool = SizeClassPool<std::unique_ptr<Staging::Block>>;

Pool& pool() {
  // Outlives every static destructor: an operation may end that late.
  static auto* blocks = new Pool(size_t{256} << 20, 32);
  return *blocks;
}

}  // namespace

Staging::Block::Block(size_t bytes) {
  // Whole pages of our own: registered pages may be unmapped in a forked child.
  void* memory = std::aligned_alloc(page_bytes, bytes);
  if (!memory)
    throw Error("no memory for the dense copy of a strided array (" + std::to_string(bytes) +
                " bytes): move it in parts, or pass a contiguous array");
  owner_ = std::make_shared<MemoryOwner>(memory, bytes);
}

Staging::Block::~Block() {
  owner_->die();
  std::free(data());
}

Staging::Staging(uint64_t bytes) {
  const size_t size = Pool::class_of(bytes);
  if (auto block = pool().take(size))
    block_ = std::move(*block);
  else
    block_ = std::make_unique<Block>(size);
}

Staging::~Staging() {
  const size_t size = block_->bytes();
  pool().give(size, std::move(block_));
}

void trim_staging() noexcept {
  pool().clear();
}

}  // namespace rdmatx
