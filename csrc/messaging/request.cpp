#include "messaging/request.hpp"

#include <algorithm>
#include <cstring>

#include "base/crc32c.hpp"
#include "base/error.hpp"
#include "gpu/buffer.hpp"

namespace rdmatx {
namespace {

// An array of so few and so large blocks is moved as it lies: a gather entry costs less than the copy then.
constexpr uint64_t max_blocks_in_place = 64;
constexpr uint64_t min_block_in_place = uint64_t{64} << 10;

bool moves_in_place(const StridedLayout& layout) noexcept {
  return layout.blocks() <= max_blocks_in_place && layout.block_bytes() >= min_block_in_place;
}

void check_receivable(const StridedLayout& layout, RequestKind kind) {
  const StridedLayout::Overlap overlap = layout.overlap();
  if (overlap == StridedLayout::Overlap::none) return;
  throw UsageError(std::string(request_kind_name(kind)) + " of " + std::to_string(layout.bytes()) +
                   " bytes into an array whose elements " +
                   (overlap == StridedLayout::Overlap::some ? "share memory" : "may share memory") +
                   " (an expanded or broadcast array, or one made by as_strided): the bytes of one element "
                   "would overwrite another's. Receive into an array of its own and copy");
}

}  // namespace

const char* request_kind_name(RequestKind kind) noexcept {
  switch (kind) {
    case RequestKind::send:
      return "send";
    case RequestKind::receive:
      return "recv";
    case RequestKind::write:
      return "write";
    case RequestKind::read:
      return "read";
    case RequestKind::write_many:
      return "write_many";
    case RequestKind::fetch_add:
      return "fetch_add";
    case RequestKind::compare_swap:
      return "compare_swap";
    case RequestKind::flush:
      return "flush";
  }
  return "operation";
}

Request::Request(std::vector<WriteBlock> blocks)
    : kind_(RequestKind::write_many), blocks_(std::move(blocks)) {
  remote_.reserve(blocks_.size());
  for (WriteBlock& block : blocks_) {
    if (block.memory.layout) settle_layout(block.memory);
    memory_.bytes += block.memory.bytes;
    if (block.memory.bytes > 0) remote_.push_back(block.remote);
  }
  bytes_ = memory_.bytes;
}

void Request::settle_layout(OperationMemory& memory) {
  const bool incoming = kind_ == RequestKind::receive || kind_ == RequestKind::read;
  if (incoming) check_receivable(*memory.layout, kind_);
  if (moves_in_place(*memory.layout)) return;
  auto staging = std::make_shared<Staging>(memory.bytes);
  memory.data = staging->data();
  memory.owner = staging->owner();
  if (incoming) {
    landing_ = std::move(memory.layout);
    staging_ = std::move(staging);
    return;
  }
  memory.layout->pack(staging->data());
  memory.layout.reset();
  memory.keepalive = std::move(staging);  // the array itself is free again
}

void Request::place(std::span<const std::byte> payload) noexcept {
  if (memory_.layout)
    memory_.layout->unpack(payload.data(), payload.size());
  else if (!payload.empty())
    std::memcpy(data(), payload.data(), payload.size());
}

void Request::land(bool succeeded) noexcept {
  if (succeeded) landing_->unpack(staging_->data(), bytes_);
  landing_.reset();
  staging_.reset();
}

uint32_t Request::checksum_of(uint64_t bytes) const noexcept {
  uint32_t sum = 0;
  for (const LocalPart& part : parts_) {
    const uint64_t here = std::min(bytes, part.bytes);
    sum = crc32c(sum, part.data, here);
    bytes -= here;
  }
  return sum;
}

void Request::register_memory(const std::shared_ptr<ProtectionDomain>& domain, Access access,
                              const TransferLimits& limits) {
  if (kind_ != RequestKind::write_many) return add_parts(memory_, domain, access, limits);
  for (const WriteBlock& block : blocks_) {
    // Small blocks travel inside their work requests.
    if (block.memory.bytes <= limits.inline_bytes) {
      if (block.memory.bytes > 0)
        parts_.push_back({static_cast<std::byte*>(block.memory.data), block.memory.bytes, 0, 0});
    } else {
      add_parts(block.memory, domain, access, limits);
    }
  }
}

void Request::add_parts(const OperationMemory& memory, const std::shared_ptr<ProtectionDomain>& domain,
                        Access access, const TransferLimits& limits) {
  if (memory.layout) return add_blocks(memory, domain, access, limits);
  auto* at = static_cast<std::byte*>(memory.data);
  if (memory.region && has_access(memory.region->access(), access)) {
    parts_.push_back({at, memory.bytes, memory.region->local_key(), memory.region->remote_key()});
    regions_.push_back(memory.region);
    return;
  }
  cache_ = RegistrationCache::of(*domain);
  if (auto region = acquire_cached(memory, at, memory.bytes, access, limits)) {
    parts_.push_back({at, memory.bytes, region->local_key(), region->remote_key()});
    regions_.push_back(std::move(region));
    return;
  }
  for (uint64_t bytes : plan_regions(memory.bytes, limits)) {
    auto region = cache_ ? cache_->create_uncached(at, bytes, access, memory.keepalive)
                         : MemoryRegion::create(domain, at, bytes, access, memory.keepalive);
    parts_.push_back({at, bytes, region->local_key(), region->remote_key()});
    regions_.push_back(std::move(region));
    at += bytes;
  }
}

std::shared_ptr<MemoryRegion> Request::acquire_cached(const OperationMemory& memory, std::byte* data,
                                                      uint64_t bytes, Access access,
                                                      const TransferLimits& limits) {
  if (!cache_ || !RegistrationCache::any_enabled()) return nullptr;
  const auto owner = memory.owner ? memory.owner : find_host_memory_owner(data, bytes);
  return owner ? cache_->acquire(owner, data, bytes, access, limits.max_region_bytes) : nullptr;
}

void Request::add_blocks(const OperationMemory& memory, const std::shared_ptr<ProtectionDomain>& domain,
                         Access access, const TransferLimits& limits) {
  const StridedLayout& layout = *memory.layout;
  const uint64_t block_bytes = layout.block_bytes();
  // One registration for all, where the device takes one that large.
  std::shared_ptr<MemoryRegion> whole;
  if (layout.extent() <= limits.max_region_bytes) {
    cache_ = RegistrationCache::of(*domain);
    whole = acquire_cached(memory, layout.lowest(), layout.extent(), access, limits);
    if (!whole)
      whole = MemoryRegion::create(domain, layout.lowest(), layout.extent(), access, memory.keepalive);
  }
  for (std::byte* block : layout.block_addresses())
    add_parts({block, block_bytes, memory.keepalive, whole, {}, {}}, domain, access, limits);
}

}  // namespace rdmatx
