// What a machine without a GPU says.

#include <cstdlib>

#include "base/error.hpp"
#include "check.hpp"
#include "gpu/copies.hpp"
#include "gpu/memory.hpp"

using namespace rdmatx;

TEST(no_driver_is_a_reason_in_words) {
  setenv("RDMATX_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
  const GpuReport report = gpu_report();
  CHECK(!report.available);
  CHECK(report.gpus.empty());
  CHECK(report.reason.find("the CUDA driver cannot be loaded (/nonexistent/libcuda.so.1") == 0);
  CHECK_THROWS(UnavailableError, "no GPU can be used: the CUDA driver cannot be loaded",
               describe_pointer(&report));
  CHECK_THROWS(UnavailableError, "no GPU can be used", DeviceBuffer::create(0, 1));
  CHECK_THROWS(UnavailableError, "no GPU can be used", PinnedBuffer(0, 1));
  trim_pinned();
}

TEST(a_library_that_is_no_driver_is_told_apart) {
  setenv("RDMATX_CUDA_LIBRARY", "libc.so.6", 1);
  CHECK(gpu_report().reason.find("lacks cuInit") != std::string::npos);
}

RDMATX_TEST_MAIN()
