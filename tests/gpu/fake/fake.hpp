#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

// A CUDA driver for machines without a GPU: a libcuda.so.1 of ours, for tests. Its device memory is real, but
// the CPU cannot touch it: the public addresses are PROT_NONE, and only the fake's own copies go through a
// second mapping of the same pages. Streams run on threads of their own, with random delays.
//
//   FAKE_CUDA_GPUS=2                how many GPUs there are
//   FAKE_CUDA_DELAY_US=200          each piece of work in a stream waits up to so long first
//   FAKE_CUDA_DMA_BUF=0             the GPUs export no dma-bufs
//   FAKE_CUDA_FLUSH=1               what a NIC wrote is seen only after a flush
//   FAKE_CUDA_FAIL=CALL:N:RESULT    the N-th call (from 1) of CALL fails with RESULT; several, by commas
//
// The same by fake_set() and fake_fail() while the test runs.

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fake {

using Result = int;
using Pointer = unsigned long long;
constexpr Result success = 0, invalid_value = 1, out_of_memory = 2, invalid_context = 201, not_found = 500,
                 not_ready = 600, illegal_address = 700, not_supported = 801;

/// A failure that was ordered for this call, or success. Counts the call.
Result ordered(const char* call);
/// "delay_us", "dma_buf", ...
int64_t setting(const std::string& name);
/// The number of the GPU whose context is current on this thread; -1 where none is.
int current_gpu();
/// A piece of work met what no right program does (memory that was freed): told by fake_faults().
void fault();

// ---- memory

/// The second mapping of [pointer, pointer + bytes) of device memory; null where it is not allocated.
std::byte* reach(Pointer pointer, size_t bytes);

// ---- streams

/// Queues work; 0, 1 and 2 are the default streams.
Result enqueue(void* stream, std::function<void()> work);
/// Waits until all that was queued is done.
Result drain(void* stream);

}  // namespace fake

/// Begins every call that can be made to fail.
#define FAKE_CALL(name) \
  if (const fake::Result ordered_ = fake::ordered(#name); ordered_ != fake::success) return ordered_
/// Begins those that need a context.
#define FAKE_CALL_IN_CONTEXT(name) \
  FAKE_CALL(name);                 \
  if (fake::current_gpu() < 0) return fake::invalid_context
