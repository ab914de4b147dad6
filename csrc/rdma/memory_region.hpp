#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "rdma/protection_domain.hpp"

namespace rdmatx {

/// Where memory begins in a dma-buf.
struct DmaBufRange {
  int descriptor = -1;
  uint64_t offset = 0;
};

/// Owns the registration of a range of memory, and holds what keeps that memory alive until the registration
/// is gone. May be used from any thread.
///
/// A range of zero bytes is a region too: nothing is registered, its keys are 0, and work requests leave
/// scatter/gather elements of zero bytes out.
class RDMATX_API MemoryRegion {
 public:
  /// Registers [address, address + bytes). Throws VerbsError: ENOMEM names RLIMIT_MEMLOCK, what is needed and
  /// the remedy; EFAULT says which memory cannot be registered. Throws UsageError where remote_write or
  /// remote_atomic is asked for without local_write.
  static std::shared_ptr<MemoryRegion> create(std::shared_ptr<ProtectionDomain> domain, void* address,
                                              size_t bytes, Access access,
                                              std::shared_ptr<void> keepalive = {});

  /// Registers memory behind a dma-buf, which work requests find at `address`: that has the same place within
  /// a page as the range. The descriptor may be closed afterwards. Throws as create() does.
  static std::shared_ptr<MemoryRegion> create_from_dma_buf(std::shared_ptr<ProtectionDomain> domain,
                                                           const DmaBufRange& range, void* address,
                                                           size_t bytes, Access access,
                                                           std::shared_ptr<void> keepalive = {});

  void* address() const noexcept { return address_; }
  /// What work requests on either side name: the address as an integer.
  uint64_t remote_address() const noexcept { return reinterpret_cast<uint64_t>(address_); }
  size_t bytes() const noexcept { return bytes_; }
  Access access() const noexcept { return access_; }
  bool covers(const void* data, size_t bytes) const noexcept {
    const auto offset = reinterpret_cast<uint64_t>(data) - remote_address();
    return offset <= bytes_ && bytes <= bytes_ - offset;
  }
  uint32_t local_key() const noexcept { return handle_ ? handle_->lkey : 0; }
  uint32_t remote_key() const noexcept { return handle_ ? handle_->rkey : 0; }
  const std::shared_ptr<ProtectionDomain>& protection_domain() const noexcept { return domain_; }

 private:
  MemoryRegion(std::shared_ptr<ProtectionDomain> domain, void* address, size_t bytes, Access access,
               std::shared_ptr<void> keepalive, const DmaBufRange* dma_buf);

  std::shared_ptr<ProtectionDomain> domain_;
  std::shared_ptr<void> keepalive_;
  void* address_;
  size_t bytes_;
  Access access_;
  MemoryRegionHandle handle_;
};

}  // namespace rdmatx
