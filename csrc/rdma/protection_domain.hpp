#pragma once

#include <memory>

#include "rdma/device.hpp"

namespace rdmatx {

/// Owns a protection domain: queue pairs reach only memory registered in their own domain.
/// May be used from any thread.
class RDMATX_API ProtectionDomain {
 public:
  static std::shared_ptr<ProtectionDomain> create(std::shared_ptr<Device> device);

  const std::shared_ptr<Device>& device() const noexcept { return device_; }

 private:
  friend class MemoryRegion;
  friend class QueuePair;
  friend class SharedReceiveQueue;
  explicit ProtectionDomain(std::shared_ptr<Device> device);
  ibv_pd* get() const noexcept { return handle_.get(); }

  std::shared_ptr<Device> device_;
  ProtectionDomainHandle handle_;
};

}  // namespace rdmatx
