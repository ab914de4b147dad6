#include "gpu/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.hpp"
#include "base/log.hpp"
#include "gpu/cuda.hpp"

namespace rdmatx {
namespace {

using cuda::Driver;

std::string hexadecimal(uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

std::string range_text(const DeviceRange& range) {
  return std::to_string(range.bytes) + " bytes at " + hexadecimal(range.address);
}

/// An attribute that the driver does not know is one that the GPU does not have.
int attribute_of(const Driver& driver, int number, cuda::DeviceAttribute attribute) {
  cuda::Device device = 0;
  int value = 0;
  if (driver.device(&device, number) != cuda::success) return 0;
  return driver.device_attribute(&value, attribute, device) == cuda::success ? value : 0;
}

template <typename Value>
Value pointer_attribute(const Driver& driver, cuda::PointerAttribute attribute, uint64_t pointer) {
  Value value{};
  return driver.pointer_attribute(&value, attribute, pointer) == cuda::success ? value : Value{};
}

bool is_mapped(const Driver& driver, uint64_t address) {
  unsigned long long handle = 0;
  if (!driver.retain_mapped_handle ||
      driver.retain_mapped_handle(&handle, reinterpret_cast<void*>(address)) != cuda::success)
    return false;
  driver.release_mapped_handle(handle);
  return true;
}

bool needs_flush(const Driver& driver, int number) {
  const bool ordered = attribute_of(driver, number, cuda::gpu_direct_rdma_writes_ordering) > 0;
  const bool can_flush = driver.flush_rdma_writes &&
                         (attribute_of(driver, number, cuda::gpu_direct_rdma_flush_writes_options) & 1);
  return !ordered && can_flush;
}

GpuInfo info_of(const Driver& driver, int number) {
  GpuInfo info;
  info.number = number;
  cuda::Device device = 0;
  char text[256] = {};
  if (driver.device(&device, number) != cuda::success) return info;
  if (driver.device_name(text, sizeof text - 1, device) == cuda::success) info.name = text;
  if (driver.device_pci_address(text, sizeof text - 1, device) == cuda::success) info.pci_address = text;
  info.exports_dma_bufs = driver.range_handle && attribute_of(driver, number, cuda::dma_buf_supported) != 0;
  info.needs_flush = needs_flush(driver, number);
  return info;
}

}  // namespace

GpuReport gpu_report() {
  GpuReport report;
  const Driver* driver = cuda::find_driver(&report.reason);
  if (!driver) return report;
  int version = 0;
  int count = 0;
  if (driver->driver_version(&version) == cuda::success)
    report.driver =
        "CUDA driver " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  if (driver->device_count(&count) != cuda::success || count == 0) {
    report.reason = "the CUDA driver sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES";
    return report;
  }
  report.available = true;
  for (int number = 0; number < count; ++number) report.gpus.push_back(info_of(*driver, number));
  return report;
}

const char* pointer_kind_name(PointerKind kind) noexcept {
  switch (kind) {
    case PointerKind::pinned:
      return "pinned host memory";
    case PointerKind::managed:
      return "managed memory";
    case PointerKind::device:
      return "device memory";
    case PointerKind::host:
      break;
  }
  return "host memory";
}

PointerInfo describe_pointer(const void* pointer) {
  const Driver& driver = cuda::need_driver();
  const auto address = reinterpret_cast<uint64_t>(pointer);
  PointerInfo info;
  // The driver fails for what it does not know.
  const auto type = pointer_attribute<unsigned>(driver, cuda::memory_type, address);
  if (type == 0) return info;
  info.kind = type == cuda::type_host ? PointerKind::pinned : PointerKind::device;
  if (pointer_attribute<unsigned>(driver, cuda::is_managed, address) != 0) info.kind = PointerKind::managed;
  info.gpu = pointer_attribute<int>(driver, cuda::device_ordinal, address);
  info.buffer_id = pointer_attribute<unsigned long long>(driver, cuda::buffer_id, address);
  info.pooled = pointer_attribute<cuda::Handle>(driver, cuda::pool_handle, address) != nullptr;
  info.mapped = info.kind == PointerKind::device && is_mapped(driver, address);
  return info;
}

DeviceRange allocation_at(uint64_t address) {
  const Driver& driver = cuda::need_driver();
  cuda::Pointer base = 0;
  size_t bytes = 0;
  if (driver.address_range(&base, &bytes, address) != cuda::success)
    throw UsageError("no GPU has an allocation at " + hexadecimal(address) +
                     ": the memory was freed, or never was a GPU's");
  return {base, bytes};
}

std::vector<DeviceRange> pieces_under(uint64_t address, uint64_t bytes) {
  std::vector<DeviceRange> pieces;
  const uint64_t end = address + bytes;
  for (uint64_t at = address; at < end;) {
    const DeviceRange whole = allocation_at(at);
    const uint64_t stop = std::min(end, whole.address + whole.bytes);
    if (stop < end && !is_mapped(cuda::need_driver(), at))
      throw UsageError("the array passes the end of its allocation on the GPU: it is " +
                       range_text({address, bytes}) + ", and the allocation is " + range_text(whole));
    pieces.push_back({at, stop - at});
    at = stop;
  }
  return pieces;
}

DmaBuf export_dma_buf(int gpu, const DeviceRange& range) {
  const Driver& driver = cuda::need_driver();
  if (!driver.range_handle)
    throw UnavailableError("the CUDA driver exports no dma-bufs: that takes driver 515 or newer");
  if (attribute_of(driver, gpu, cuda::dma_buf_supported) == 0)
    throw UnavailableError(
        "GPU " + std::to_string(gpu) +
        " exports no dma-bufs: that takes a data-centre or professional GPU, the open kernel modules of the "
        "NVIDIA driver, and Linux 5.12 or newer");
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t first = range.address / page * page;
  const uint64_t end = (range.address + range.bytes + page - 1) / page * page;
  const cuda::CurrentGpu current(driver, gpu);
  int fd = -1;
  cuda::check(driver, driver.range_handle(&fd, first, end - first, cuda::range_handle_dma_buf, 0),
              "cuMemGetHandleForAddressRange", "The range was " + range_text({first, end - first}));
  DmaBuf exported{UniqueFd(fd), range.address - first};
  // A copy in the GPU that the caller takes for done has to be done before a NIC looks. Memory of pools and
  // mapped memory do not take the attribute, and need it no more than an unordered copy does.
  if (driver.set_pointer_attribute) {
    const unsigned yes = 1;
    driver.set_pointer_attribute(&yes, cuda::sync_memory_operations, range.address);
  }
  return exported;
}

void flush_remote_writes(int gpu) {
  const Driver& driver = cuda::need_driver();
  if (!needs_flush(driver, gpu)) return;
  const cuda::CurrentGpu current(driver, gpu);
  cuda::check(driver, driver.flush_rdma_writes(cuda::flush_current_context, cuda::flush_to_owner),
              "cuFlushGPUDirectRDMAWrites");
}

int DeviceBuffer::current_process() noexcept {
  return getpid();
}

std::shared_ptr<DeviceBuffer> DeviceBuffer::create(int gpu, size_t bytes) {
  const Driver& driver = cuda::need_driver();
  const cuda::CurrentGpu current(driver, gpu);
  cuda::Pointer address = 0;
  const std::string subject = std::to_string(bytes) + " bytes on GPU " + std::to_string(gpu);
  cuda::check(driver, driver.allocate(&address, std::max<size_t>(bytes, 1)), "cuMemAlloc", subject);
  std::shared_ptr<DeviceBuffer> buffer(new DeviceBuffer(gpu, address, bytes));
  if (bytes > 0) {
    cuda::check(driver, driver.fill(address, 0, bytes, nullptr), "cuMemsetD8Async", subject);
    cuda::check(driver, driver.synchronize_stream(nullptr), "cuStreamSynchronize", subject);
  }
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (process_ != current_process()) return;  // a forked child's copy: the parent's driver is not there
  const Driver* driver = cuda::find_driver();
  if (!driver) return;
  try {
    const cuda::CurrentGpu current(*driver, gpu_);
    cuda::check(*driver, driver->free(address_), "cuMemFree");
  } catch (const Error& error) {
    // At the end of a process the driver may be gone before us, and the memory with it.
    log(LogLevel::debug, error.what());
  }
}

}  // namespace rdmatx
