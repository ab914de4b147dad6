#include "rdma/protection_domain.hpp"

#include <utility>

namespace rdmatx {

std::shared_ptr<ProtectionDomain> ProtectionDomain::create(std::shared_ptr<Device> device) {
  return std::shared_ptr<ProtectionDomain>(new ProtectionDomain(std::move(device)));
}

ProtectionDomain::ProtectionDomain(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      handle_(device_->verbs(), check_pointer(device_->verbs()->alloc_pd(device_->get()), "ibv_alloc_pd",
                                              "device " + device_->name())) {}

}  // namespace rdmatx
