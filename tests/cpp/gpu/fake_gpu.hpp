#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/dynlib.hpp"
#include "check.hpp"

// The fake driver (tests/gpu/fake) from the side of a test: makes memory, kernels and failures.

namespace rdmatx::testing {

using Address = unsigned long long;

/// Has rdmatx load the fake driver instead of a real one. Before the first use of a GPU.
inline const bool fake_gpu_chosen = [] {
  setenv("RDMATX_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
  return true;
}();

class FakeGpu {
 public:
  static FakeGpu& get() {
    static FakeGpu gpu;
    return gpu;
  }

  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) {
    void* address = library_.symbol(name);
    CHECK(address != nullptr);
    return reinterpret_cast<int (*)(Arguments...)>(address)(arguments...);
  }
  template <typename... Arguments>
  void must(const char* name, Arguments... arguments) {
    CHECK_EQ(call(name, arguments...), 0);
  }

  void set(const char* name, int64_t value) { call("fake_set", name, value); }
  void fail(const char* name, int64_t number, int result) { call("fake_fail", name, number, result); }
  void put(Address to, const std::vector<unsigned char>& bytes) {
    must("fake_put", to, static_cast<const void*>(bytes.data()), bytes.size());
  }
  std::vector<unsigned char> take(Address from, size_t bytes) {
    std::vector<unsigned char> out(bytes);
    must("fake_get", static_cast<void*>(out.data()), from, bytes);
    return out;
  }

 private:
  FakeGpu() : library_(FAKE_CUDA_LIBRARY) {
    CHECK(bool(library_));
    void* context = nullptr;
    must("cuInit", 0u);
    must("cuDevicePrimaryCtxRetain", &context, 0);
    must("cuCtxPushCurrent_v2", context);
  }
  DynamicLibrary library_;
};

/// An allocation, or mapped pieces one behind the other.
class FakeMemory {
 public:
  explicit FakeMemory(size_t bytes, const char* how = "cuMemAlloc_v2") : bytes_(bytes) {
    FakeGpu::get().must(how, &address_, bytes);
  }
  explicit FakeMemory(const std::vector<size_t>& pieces) {
    for (const size_t piece : pieces) bytes_ += piece;
    FakeGpu& gpu = FakeGpu::get();
    gpu.must("cuMemAddressReserve", &address_, bytes_, size_t{0}, Address{0}, 0ull);
    mapped_ = true;
    Address at = address_;
    for (const size_t piece : pieces) {
      unsigned long long handle = 0;
      gpu.must("cuMemCreate", &handle, piece, static_cast<const void*>(nullptr), 0ull);
      gpu.must("cuMemMap", at, piece, size_t{0}, handle, 0ull);
      gpu.must("cuMemRelease", handle);
      at += piece;
    }
  }
  ~FakeMemory() {
    FakeGpu& gpu = FakeGpu::get();
    if (mapped_) gpu.call("cuMemUnmap", address_, bytes_);
    mapped_ ? gpu.call("cuMemAddressFree", address_, bytes_) : gpu.call("cuMemFree_v2", address_);
  }
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  Address address() const { return address_; }
  void* pointer() const { return reinterpret_cast<void*>(address_); }
  size_t bytes() const { return bytes_; }

 private:
  Address address_ = 0;
  size_t bytes_ = 0;
  bool mapped_ = false;
};

/// Bytes that differ from place to place.
inline std::vector<unsigned char> pattern(size_t bytes, unsigned seed = 1) {
  std::vector<unsigned char> out(bytes);
  uint32_t state = seed * 2654435761u + 1;
  for (auto& byte : out) byte = static_cast<unsigned char>((state = state * 1664525u + 1013904223u) >> 24);
  return out;
}

}  // namespace rdmatx::testing
