#include "messaging/request.hpp"

#include <algorithm>
#include <cstring>

#include "base/crc32c.hpp"
#include "base/error.hpp"
#include "gpu/buffer.hpp"

namespace rdmatx {
namespace {

// An array of so few and so large blocks is moved as it lies: a gather entry costs less than the copy then.
// What peers write to needs a registration for each block, since what lies between them is not for the peer.
constexpr uint64_t max_blocks_in_place = 64;
constexpr uint64_t min_block_in_place = uint64_t{16} << 10;
constexpr uint64_t min_block_received_in_place = uint64_t{256} << 10;

bool moves_in_place(const StridedLayout& layout, RequestKind kind) noexcept {
  return layout.blocks() <= max_blocks_in_place &&
         layout.block_bytes() >=
             (kind == RequestKind::receive ? min_block_received_in_place : min_block_in_place);
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

// The registration of one range in one domain: the user's, one that is kept, or one for this operation.
static std::shared_ptr<MemoryRegion> register_range(const OperationMemory& memory, std::byte* data,
                                                    uint64_t bytes,
                                                    const std::shared_ptr<ProtectionDomain>& domain,
                                                    Access access, const TransferLimits& limits) {
  if (memory.region)
    for (const auto& region : *memory.region)
      if (region->protection_domain() == domain && has_access(region->access(), access) &&
          region->covers(data, bytes))
        return region;
  const auto cache = RegistrationCache::of(*domain);
  if (!cache) return MemoryRegion::create(domain, data, bytes, access, memory.keepalive);
  if (RegistrationCache::any_enabled()) {
    const auto owner = memory.owner ? memory.owner : find_host_memory_owner(data, bytes);
    if (owner)
      if (auto region = cache->acquire(owner, data, bytes, access, limits.max_region_bytes)) return region;
  }
  return cache->create_uncached(data, bytes, access, memory.keepalive);
}

Request::Request(std::vector<WriteBlock> blocks)
    : kind_(RequestKind::write_many), blocks_(std::move(blocks)) {
  for (WriteBlock& block : blocks_) {
    if (block.memory.layout) settle_layout(block.memory);
    memory_.bytes += block.memory.bytes;
    if (block.memory.bytes > 0) remote_.push_back(block.remote);
    for (const RemotePart& part : block.more) remote_.push_back(part);
  }
  bytes_ = memory_.bytes;
}

void Request::settle_layout(OperationMemory& memory) {
  const bool incoming = kind_ == RequestKind::receive || kind_ == RequestKind::read;
  if (incoming) check_receivable(*memory.layout, kind_);
  if (moves_in_place(*memory.layout, kind_)) return;
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

void Request::place(std::span<const std::byte> payload) {
  if (memory_.device)
    device_->place(payload);
  else if (memory_.layout)
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

void Request::register_memory(RailDomains domains, Access access, const TransferLimits& limits) {
  if (kind_ != RequestKind::write_many) return add_parts(memory_, domains, access, limits);
  for (const WriteBlock& block : blocks_) {
    // Small blocks travel inside their work requests.
    if (block.memory.bytes <= limits.inline_bytes && !device_) {
      if (block.memory.bytes > 0)
        parts_.push_back({static_cast<std::byte*>(block.memory.data), block.memory.bytes});
    } else {
      add_parts(block.memory, domains, access, limits);
    }
  }
}

void Request::add_parts(const OperationMemory& memory, RailDomains domains, Access access,
                        const TransferLimits& limits) {
  if (memory.layout) return add_blocks(memory, domains, access, limits);
  auto* at = static_cast<std::byte*>(memory.data);
  uint64_t left = memory.bytes;
  // What the cache or the user's region covers is one part, whatever its size; a GPU's memory may be of
  // several pieces.
  std::vector<uint64_t> sizes;
  if (memory.device)
    for (const DeviceRange& piece : memory.device->pieces) sizes.push_back(piece.bytes);
  else
    sizes = memory.region ? std::vector{left} : plan_regions(left, limits);
  for (uint64_t bytes : sizes) {
    add_registered(memory, at, bytes, domains, access, limits);
    at += bytes;
  }
}

void Request::add_registered(const OperationMemory& memory, std::byte* data, uint64_t bytes,
                             RailDomains domains, Access access, const TransferLimits& limits) {
  LocalPart part{data, bytes};
  std::shared_ptr<MemoryRegion> region;
  for (size_t rail = 0; rail < domains.size(); ++rail) {
    // Two rails of one device share its registration.
    if (rail == 0 || domains[rail] != domains[rail - 1])
      region = register_range(memory, data, bytes, domains[rail], access, limits);
    part.local_keys[rail] = region->local_key();
    part.remote_keys[rail] = region->remote_key();
    regions_.push_back(region);
  }
  parts_.push_back(part);
}

void Request::add_blocks(const OperationMemory& memory, RailDomains domains, Access access,
                         const TransferLimits& limits) {
  const StridedLayout& layout = *memory.layout;
  OperationMemory block{nullptr, layout.block_bytes(), memory.keepalive, {}, {}, memory.owner};
  // One registration for all, where the device takes one that large and no peer reaches it.
  if (layout.extent() <= limits.max_region_bytes && !has_access(access, Access::remote_write)) {
    const OperationMemory whole{layout.lowest(), layout.extent(), memory.keepalive, {}, {}, memory.owner};
    RailRegions regions;
    for (const auto& domain : domains)
      regions.push_back(register_range(whole, layout.lowest(), layout.extent(), domain, access, limits));
    block.region = std::make_shared<const RailRegions>(std::move(regions));
  }
  for (std::byte* address : layout.block_addresses()) {
    block.data = address;
    add_parts(block, domains, access, limits);
  }
}

void Request::discard_registrations() noexcept {
  for (const auto& region : regions_)
    if (const auto cache = RegistrationCache::of(*region->protection_domain())) cache->discard(region);
}

}  // namespace rdmatx
