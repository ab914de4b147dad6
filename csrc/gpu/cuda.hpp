#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// The CUDA driver, without its toolkit: our own declarations of the calls we use, opened at run time. For the
// files of gpu/ alone; what is above them knows GPUs by gpu/memory.hpp and gpu/copies.hpp.

namespace rdmatx::cuda {

using Result = int;                  // 0 is success
using Pointer = unsigned long long;  // CUdeviceptr
using Device = int;                  // a handle; the number where only the driver's first calls made it
using Handle = void*;                // contexts, streams, events
constexpr Result success = 0, not_ready = 600;

enum DeviceAttribute : int {
  gpu_direct_rdma_supported = 116,
  gpu_direct_rdma_flush_writes_options = 117,  // bit 0: cuFlushGPUDirectRDMAWrites
  gpu_direct_rdma_writes_ordering = 118,       // 0: what arrived is seen only after a flush
  dma_buf_supported = 124,
};
enum PointerAttribute : int {
  memory_type = 2,
  sync_memory_operations = 6,
  buffer_id = 7,
  is_managed = 8,
  device_ordinal = 9,
  pool_handle = 17,
};
constexpr unsigned type_host = 1, type_device = 2;
constexpr int range_handle_dma_buf = 1;
constexpr unsigned event_without_timing = 2, stream_without_legacy = 1, host_memory_portable = 1;
constexpr int flush_current_context = 0, flush_to_owner = 100;

// X(member, function, parameters). A driver without one of the first list is none for us; the second list is
// of what older drivers lack, and is null then.
// clang-format off
#define RDMATX_CUDA_CALLS(X)                                                                              \
  X(init, cuInit, (unsigned flags))                                                                       \
  X(driver_version, cuDriverGetVersion, (int* version))                                                   \
  X(error_name, cuGetErrorName, (Result error, const char** name))                                        \
  X(error_string, cuGetErrorString, (Result error, const char** text))                                    \
  X(device_count, cuDeviceGetCount, (int* count))                                                         \
  X(device, cuDeviceGet, (Device * device, int number))                                                   \
  X(device_name, cuDeviceGetName, (char* name, int bytes, Device device))                                 \
  X(device_pci_address, cuDeviceGetPCIBusId, (char* address, int bytes, Device device))                   \
  X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, Device device))                   \
  X(retain_context, cuDevicePrimaryCtxRetain, (Handle * context, Device device))                          \
  X(push_context, cuCtxPushCurrent_v2, (Handle context))                                                  \
  X(pop_context, cuCtxPopCurrent_v2, (Handle * context))                                                  \
  X(pointer_attribute, cuPointerGetAttribute, (void* value, int attribute, Pointer pointer))              \
  X(address_range, cuMemGetAddressRange_v2, (Pointer * base, size_t* bytes, Pointer pointer))             \
  X(allocate, cuMemAlloc_v2, (Pointer * pointer, size_t bytes))                                           \
  X(free, cuMemFree_v2, (Pointer pointer))                                                                \
  X(allocate_host, cuMemHostAlloc, (void** pointer, size_t bytes, unsigned flags))                        \
  X(free_host, cuMemFreeHost, (void* pointer))                                                            \
  X(copy_to_device, cuMemcpyHtoDAsync_v2, (Pointer to, const void* from, size_t bytes, Handle stream))    \
  X(copy_to_host, cuMemcpyDtoHAsync_v2, (void* to, Pointer from, size_t bytes, Handle stream))            \
  X(fill, cuMemsetD8Async, (Pointer to, unsigned char value, size_t bytes, Handle stream))                \
  X(create_stream, cuStreamCreate, (Handle * stream, unsigned flags))                                     \
  X(synchronize_stream, cuStreamSynchronize, (Handle stream))                                             \
  X(wait_for_event, cuStreamWaitEvent, (Handle stream, Handle event, unsigned flags))                     \
  X(create_event, cuEventCreate, (Handle * event, unsigned flags))                                        \
  X(record_event, cuEventRecord, (Handle event, Handle stream))                                           \
  X(query_event, cuEventQuery, (Handle event))                                                            \
  X(synchronize_event, cuEventSynchronize, (Handle event))                                                \
  X(destroy_event, cuEventDestroy_v2, (Handle event))
#define RDMATX_CUDA_NEWER_CALLS(X)                                                                        \
  X(set_pointer_attribute, cuPointerSetAttribute, (const void* value, int attribute, Pointer pointer))    \
  X(stream_is_capturing, cuStreamIsCapturing, (Handle stream, int* status))                               \
  X(range_handle, cuMemGetHandleForAddressRange,                                                          \
    (void* handle, Pointer address, size_t bytes, int type, unsigned long long flags))                    \
  X(flush_rdma_writes, cuFlushGPUDirectRDMAWrites, (int target, int scope))                               \
  X(retain_mapped_handle, cuMemRetainAllocationHandle, (unsigned long long* handle, void* address))       \
  X(release_mapped_handle, cuMemRelease, (unsigned long long handle))
// clang-format on

/// The calls of one loaded driver. Immutable.
struct Driver {
#define X(member, function, parameters) Result(*member) parameters = nullptr;
  RDMATX_CUDA_CALLS(X)
  RDMATX_CUDA_NEWER_CALLS(X)
#undef X
};

/// The driver, loaded and initialized at the first call (RDMATX_CUDA_LIBRARY names another file than
/// libcuda.so.1). Null where there is none, and `reason` says why, with the remedy; a later call tries again.
/// Any thread.
const Driver* find_driver(std::string* reason = nullptr);
/// The same, or UnavailableError with the reason.
const Driver& need_driver();

/// Throws CudaError where a call failed: its name, the driver's words, and `context`.
void check(const Driver& driver, Result result, const char* call, const std::string& context = {});

/// Makes the primary context of a GPU (the one that the CUDA runtime, and so every framework, uses) current
/// for a scope.
class CurrentGpu {
 public:
  CurrentGpu(const Driver& driver, int number);
  ~CurrentGpu();
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  const Driver& driver_;
};

}  // namespace rdmatx::cuda
