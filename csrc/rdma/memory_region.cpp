#include "rdma/memory_region.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace rdmatx {
namespace {

std::string locked_memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return std::to_string(limit.rlim_cur) + " bytes";
}

/// Whether all of the range is mapped. Such a call to msync() does nothing but look.
bool is_mapped(void* address, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(address) / page * page;
  const uintptr_t size = reinterpret_cast<uintptr_t>(address) + bytes - first;
  return msync(reinterpret_cast<void*>(first), size, MS_ASYNC) == 0 || errno != ENOMEM;
}

/// The likely cause and the remedy of a refused registration (ibv_reg_mr(3)).
std::string registration_advice(int code, const Device& device, void* address, size_t bytes) {
  switch (code) {
    case ENOMEM:
      // libibverbs without copy-on-fork meets unmapped memory in madvise(), which says ENOMEM for it.
      if (!is_mapped(address, bytes))
        return "part of the range is not memory of this process: nothing is mapped there";
      return "the memory cannot be locked: RLIMIT_MEMLOCK is " + locked_memory_limit() +
             " for all locked memory of the "
             "process, and this region alone needs " +
             std::to_string(bytes) +
             " bytes. Raise it: `ulimit -l unlimited` in the shell, LimitMEMLOCK=infinity in a systemd unit, "
             "`memlock` in /etc/security/limits.conf, --ulimit memlock=-1 for a container. Where it is not "
             "the "
             "limit, the machine is short of memory";
    case EFAULT:
      return "the range is not ordinary memory of this process that allows the access: part of it may be "
             "unmapped, "
             "read-only although local_write was asked for, or memory of a GPU. GPU memory needs the module "
             "nvidia-peermem, or registration by dma-buf";
    case EINVAL:
      return "the device refuses the range or the access; it takes regions of at most " +
             std::to_string(device.attributes().limits.max_mr_size) + " bytes";
    case EOPNOTSUPP:
      return "the device cannot register memory in this way";
    default:
      return "";
  }
}

std::string region_text(void* address, size_t bytes, Access access) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", address);
  return std::to_string(bytes) + " bytes at " + text + ", access " + access_text(access);
}

void check_access(Access access) {
  constexpr Access changes_memory = Access::remote_write | Access::remote_atomic;
  if ((access & changes_memory) != Access::none && !has_access(access, Access::local_write))
    throw UsageError(
        "memory that peers may change needs local_write too (ibv_reg_mr): the access asked for was " +
        access_text(access));
}

ibv_mr* register_memory(const Device& device, ibv_pd* domain, void* address, size_t bytes, Access access) {
  check_access(access);
  if (bytes == 0) return nullptr;  // no device registers nothing
  ibv_mr* region = device.verbs()->reg_mr(domain, address, bytes, static_cast<int>(access));
  if (region) return region;
  const int code = errno;
  const std::string advice = registration_advice(code, device, address, bytes);
  throw VerbsError("ibv_reg_mr", code,
                   region_text(address, bytes, access) + (advice.empty() ? "" : ": " + advice));
}

/// Why a device refuses a dma-buf (ibv_reg_dmabuf_mr(3)).
std::string dma_buf_advice(int code) {
  switch (code) {
    case EOPNOTSUPP:
    case ENOSYS:
    case EPROTONOSUPPORT:
      return ": the device or its driver registers no dma-bufs (that takes Linux 5.12, rdma-core 34, and for "
             "instance a ConnectX-5 or newer)";
    case ENOMEM:
      return ": the memory cannot be mapped for the device; a GPU with a small BAR1 has room for few "
             "registrations at once";
    default:
      return "";
  }
}

ibv_mr* register_dma_buf(const Device& device, ibv_pd* domain, const DmaBufRange& range, void* address,
                         size_t bytes, Access access) {
  check_access(access);
  if (bytes == 0) return nullptr;
  ibv_mr* region =
      device.verbs()->reg_dmabuf_mr(domain, range.offset, bytes, reinterpret_cast<uint64_t>(address),
                                    range.descriptor, static_cast<int>(access));
  if (region) return region;
  const int code = errno;
  throw VerbsError("ibv_reg_dmabuf_mr", code, region_text(address, bytes, access) + dma_buf_advice(code));
}

}  // namespace

std::shared_ptr<MemoryRegion> MemoryRegion::create(std::shared_ptr<ProtectionDomain> domain, void* address,
                                                   size_t bytes, Access access,
                                                   std::shared_ptr<void> keepalive) {
  return std::shared_ptr<MemoryRegion>(
      new MemoryRegion(std::move(domain), address, bytes, access, std::move(keepalive), nullptr));
}

std::shared_ptr<MemoryRegion> MemoryRegion::create_from_dma_buf(std::shared_ptr<ProtectionDomain> domain,
                                                                const DmaBufRange& range, void* address,
                                                                size_t bytes, Access access,
                                                                std::shared_ptr<void> keepalive) {
  return std::shared_ptr<MemoryRegion>(
      new MemoryRegion(std::move(domain), address, bytes, access, std::move(keepalive), &range));
}

MemoryRegion::MemoryRegion(std::shared_ptr<ProtectionDomain> domain, void* address, size_t bytes,
                           Access access, std::shared_ptr<void> keepalive, const DmaBufRange* dma_buf)
    : domain_(std::move(domain)),
      keepalive_(std::move(keepalive)),
      address_(address),
      bytes_(bytes),
      access_(access),
      handle_(domain_->device()->verbs(),
              dma_buf ? register_dma_buf(*domain_->device(), domain_->get(), *dma_buf, address, bytes, access)
                      : register_memory(*domain_->device(), domain_->get(), address, bytes, access)) {}

}  // namespace rdmatx
