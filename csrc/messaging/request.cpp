#include "messaging/request.hpp"

namespace rdmatx {

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
  }
  return "operation";
}

void Request::register_memory(const std::shared_ptr<ProtectionDomain>& domain, Access access,
                              const TransferLimits& limits) {
  if (memory_.region && has_access(memory_.region->access(), access)) {
    parts_ = {{data(), capacity(), memory_.region->local_key(), memory_.region->remote_key()}};
    regions_ = {memory_.region};
    return;
  }
  std::byte* at = data();
  for (uint64_t bytes : plan_regions(capacity(), limits)) {
    auto region = MemoryRegion::create(domain, at, bytes, access, memory_.keepalive);
    parts_.push_back({at, bytes, region->local_key(), region->remote_key()});
    regions_.push_back(std::move(region));
    at += bytes;
  }
}

}  // namespace rdmatx
