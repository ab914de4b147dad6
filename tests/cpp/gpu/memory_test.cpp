// Pointers, allocations and dma-bufs, on the fake driver.

#include "gpu/memory.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/error.hpp"
#include "check.hpp"
#include "gpu/fake_gpu.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

/// What a NIC would see at the offset of a dma-buf: through the descriptor alone.
std::vector<unsigned char> seen_through(const DmaBuf& exported, size_t bytes) {
  std::vector<unsigned char> out(bytes);
  const off_t start = lseek(exported.fd.get(), 0, SEEK_CUR);
  CHECK_EQ(pread(exported.fd.get(), out.data(), bytes, start + static_cast<off_t>(exported.offset)),
           static_cast<ssize_t>(bytes));
  return out;
}

}  // namespace

TEST(the_report_names_driver_and_gpus) {
  const GpuReport report = gpu_report();
  CHECK(report.available);
  CHECK_EQ(report.driver, "CUDA driver 12.4");
  CHECK_EQ(report.gpus.size(), 2u);
  CHECK_EQ(report.gpus[1].name, "Fake GPU 1");
  CHECK_EQ(report.gpus[1].pci_address, "0000:11:00.0");
  CHECK(report.gpus[0].exports_dma_bufs);
  CHECK(!report.gpus[0].needs_flush);
}

TEST(device_memory_is_not_for_the_cpu) {
  const FakeMemory memory(1 << 20);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    *static_cast<volatile char*>(memory.pointer()) = 1;
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK_EQ(WTERMSIG(status), SIGSEGV);
}

TEST(kinds_of_pointers) {
  const FakeMemory device(4096), managed(1 << 20, "cuMemAllocManaged"),
      mapped(std::vector<size_t>{65536, 65536});
  int here = 0;
  CHECK_EQ(describe_pointer(&here).kind, PointerKind::host);
  const PointerInfo info = describe_pointer(device.pointer());
  CHECK_EQ(info.kind, PointerKind::device);
  CHECK_EQ(info.gpu, 0);
  CHECK(info.buffer_id != 0);
  CHECK(!info.mapped && !info.pooled);
  CHECK_EQ(describe_pointer(managed.pointer()).kind, PointerKind::managed);
  CHECK(describe_pointer(mapped.pointer()).mapped);

  void* pinned = nullptr;
  FakeGpu::get().must("cuMemHostAlloc", &pinned, size_t{4096}, 0u);
  CHECK_EQ(describe_pointer(pinned).kind, PointerKind::pinned);
  FakeGpu::get().must("cuMemFreeHost", pinned);

  Address pooled = 0;
  FakeGpu::get().must("cuMemAllocAsync", &pooled, size_t{4096}, static_cast<void*>(nullptr));
  CHECK(describe_pointer(reinterpret_cast<void*>(pooled)).pooled);
  CHECK_THROWS(CudaError, "cuMemGetHandleForAddressRange failed: CUDA_ERROR_NOT_SUPPORTED (801)",
               export_dma_buf(0, {pooled, 4096}));
  FakeGpu::get().must("cuMemFreeAsync", pooled, static_cast<void*>(nullptr));
  FakeGpu::get().must("cuStreamSynchronize", static_cast<void*>(nullptr));
}

TEST(an_address_that_is_used_again_has_another_buffer_id) {
  uint64_t first = 0, id = 0;
  {
    const FakeMemory memory(4096);
    first = memory.address();
    id = describe_pointer(memory.pointer()).buffer_id;
  }
  const FakeMemory memory(4096);
  CHECK(describe_pointer(memory.pointer()).buffer_id != id);
  CHECK(first != 0);
}

TEST(allocations_and_pieces) {
  const FakeMemory one(100000), many(std::vector<size_t>{65536, 131072, 65536});
  CHECK_EQ(allocation_at(one.address() + 5).address, one.address());
  CHECK_EQ(allocation_at(one.address() + 99999).bytes, 100000u);
  CHECK_EQ(pieces_under(one.address() + 3, 99997).size(), 1u);
  CHECK_THROWS(UsageError, "passes the end of its allocation", pieces_under(one.address() + 4, 99997));
  CHECK_THROWS(UsageError, "no GPU has an allocation at", allocation_at(many.address() + many.bytes()));

  const auto pieces = pieces_under(many.address() + 65535, 131074);
  CHECK_EQ(pieces.size(), 3u);
  CHECK_EQ(pieces[0].bytes, 1u);
  CHECK_EQ(pieces[1].address, many.address() + 65536);
  CHECK_EQ(pieces[1].bytes, 131072u);
  CHECK_EQ(pieces[2].bytes, 1u);
  CHECK_EQ(pieces_under(many.address(), 65536).size(), 1u);
  CHECK(pieces_under(many.address(), 0).empty());
}

TEST(a_dma_buf_shows_the_bytes_at_every_offset) {
  // Sub-allocated, so it begins within a page; alone; and mapped.
  const FakeMemory padding(700), small(20000), large(1 << 20), mapped(std::vector<size_t>{1 << 20, 65536});
  const FakeMemory* const kinds[] = {&small, &large, &mapped};
  for (const FakeMemory* memory : kinds) {
    const auto bytes = pattern(9000);
    FakeGpu::get().put(memory->address(), bytes);
    for (size_t offset = 0; offset <= 4096; offset += offset < 16 || offset > 4080 ? 1 : 255) {
      const DmaBuf exported = export_dma_buf(0, {memory->address() + offset, 4097});
      CHECK_EQ(exported.offset, (memory->address() + offset) % 4096);
      const auto seen = seen_through(exported, 4097);
      CHECK(std::memcmp(seen.data(), bytes.data() + offset, 4097) == 0);
    }
  }
}

TEST(what_is_not_exported_says_why) {
  const FakeMemory memory(1 << 20);
  FakeGpu& gpu = FakeGpu::get();
  gpu.set("dma_buf", 0);
  CHECK(!gpu_report().gpus[0].exports_dma_bufs);
  CHECK_THROWS(UnavailableError, "GPU 0 exports no dma-bufs", export_dma_buf(0, {memory.address(), 4096}));
  gpu.set("dma_buf", 1);
  gpu.fail("cuMemGetHandleForAddressRange", 1, 999);
  CHECK_THROWS(CudaError, "CUDA_ERROR_UNKNOWN (999)", export_dma_buf(0, {memory.address(), 4096}));
  CHECK(bool(export_dma_buf(0, {memory.address(), 4096}).fd));
}

TEST(remote_writes_are_flushed_where_the_gpu_asks_for_it) {
  FakeGpu& gpu = FakeGpu::get();
  flush_remote_writes(0);
  CHECK_EQ(gpu.call("fake_flushes"), 0);
  gpu.set("flush", 1);
  CHECK(gpu_report().gpus[0].needs_flush);
  flush_remote_writes(0);
  CHECK_EQ(gpu.call("fake_flushes"), 1);
  gpu.set("flush", 0);
}

TEST(a_buffer_of_ours_is_zeroed_and_freed) {
  FakeGpu& gpu = FakeGpu::get();
  const int before = gpu.call("fake_allocations");
  {
    const auto buffer = DeviceBuffer::create(1, 300000);
    CHECK_EQ(describe_pointer(reinterpret_cast<void*>(buffer->address())).gpu, 1);
    CHECK(gpu.take(buffer->address(), 300000) == std::vector<unsigned char>(300000));
    CHECK_EQ(gpu.call("fake_allocations"), before + 1);
    CHECK_EQ(DeviceBuffer::create(0, 0)->bytes(), 0u);
  }
  CHECK_EQ(gpu.call("fake_allocations"), before);
  CHECK_THROWS(CudaError, "cuDeviceGet failed", DeviceBuffer::create(7, 10));
  gpu.fail("cuMemAlloc_v2", 1, 2);
  CHECK_THROWS(CudaError, "CUDA_ERROR_OUT_OF_MEMORY", DeviceBuffer::create(0, 10));
  gpu.fail("cuMemsetD8Async", 1, 999);
  CHECK_THROWS(CudaError, "cuMemsetD8Async", DeviceBuffer::create(0, 10));
  CHECK_EQ(gpu.call("fake_allocations"), before);
}

RDMATX_TEST_MAIN()
