// Events, pinned memory and copies, on the fake driver with delays.

#include "gpu/copies.hpp"

#include <cstring>
#include <thread>

#include "base/error.hpp"
#include "check.hpp"
#include "gpu/fake_gpu.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

struct Stream {
  Stream() { FakeGpu::get().must("cuStreamCreate", &handle, 1u); }
  ~Stream() {
    FakeGpu::get().call("cuStreamSynchronize", handle);
    FakeGpu::get().call("cuStreamDestroy_v2", handle);
  }
  StreamHandle number() const { return reinterpret_cast<StreamHandle>(handle); }
  void* handle = nullptr;
};

}  // namespace

TEST(an_event_is_reached_behind_the_work_before_it) {
  const FakeMemory memory(4096);
  const Stream stream;
  FakeGpu::get().must("fake_add", memory.address(), static_cast<unsigned char>(1), size_t{4096},
                      int64_t{20000}, stream.handle);
  GpuEvent event = GpuEvent::record(0, stream.number());
  CHECK(!event.reached());
  event.synchronize();
  CHECK(event.reached());
  GpuEvent moved = std::move(event);
  CHECK(moved.reached());
}

TEST(events_are_given_back) {
  const int before = FakeGpu::get().call("fake_events");
  {
    const Stream stream;
    GpuEvent one = GpuEvent::record(0, stream.number());
    one = GpuEvent::record(0, stream.number());
    const GpuEvent other = std::move(one);
  }
  FakeGpu::get().fail("cuEventRecord", 1, 700);
  CHECK_THROWS(CudaError, "CUDA_ERROR_ILLEGAL_ADDRESS", GpuEvent::record(0, 0));
  CHECK_EQ(FakeGpu::get().call("fake_events"), before);
}

TEST(copies_wait_for_their_stream_and_say_how_far_they_are) {
  FakeGpu::get().set("delay_us", 300);
  const size_t bytes = (3 << 20) + 17;
  const FakeMemory memory(bytes + 5);
  for (unsigned round = 0; round < 20; ++round) {
    const Stream stream;
    auto wanted = pattern(bytes, round);
    FakeGpu::get().put(memory.address() + 5, wanted);
    FakeGpu::get().must("fake_add", memory.address() + 5, static_cast<unsigned char>(3), bytes, int64_t{500},
                        stream.handle);
    for (auto& byte : wanted) byte = static_cast<unsigned char>(byte + 3);
    const PinnedBuffer pinned(0, bytes);
    DeviceCopy copy = DeviceCopy::to_host(0, pinned.data(), memory.address() + 5, bytes, stream.number());
    for (uint64_t before = 0; !copy.finished();) {
      const uint64_t ready = copy.ready();
      CHECK(ready >= before);
      CHECK(std::memcmp(pinned.data() + before, wanted.data() + before, ready - before) == 0);
      before = ready;
    }
    CHECK(std::memcmp(pinned.data(), wanted.data(), bytes) == 0);

    std::memset(pinned.data(), static_cast<int>(round), bytes);
    DeviceCopy back = DeviceCopy::to_device(0, memory.address(), pinned.data(), bytes);
    back.synchronize();
    CHECK(back.finished());
    CHECK(FakeGpu::get().take(memory.address(), bytes) ==
          std::vector<unsigned char>(bytes, static_cast<unsigned char>(round)));
  }
  FakeGpu::get().set("delay_us", 0);
  CHECK_EQ(FakeGpu::get().call("fake_faults"), 0);
}

TEST(a_stream_that_is_captured_is_refused) {
  const Stream stream;
  void* graph = nullptr;
  check_not_capturing(0, stream.number());
  FakeGpu::get().must("cuStreamBeginCapture_v2", stream.handle, 0);
  CHECK_THROWS(UsageError, "being captured into a CUDA graph", check_not_capturing(0, stream.number()));
  FakeGpu::get().must("cuStreamEndCapture", stream.handle, &graph);
  FakeGpu::get().fail("cuStreamIsCapturing", 1, 906);
  CHECK_THROWS(UsageError, "being captured into a CUDA graph", check_not_capturing(0, 0));
  check_not_capturing(0, 0);
}

TEST(pinned_memory_is_used_again_and_given_back) {
  trim_pinned();
  FakeGpu& gpu = FakeGpu::get();
  const int before = gpu.call("fake_pinned");
  const std::byte* first = nullptr;
  {
    const PinnedBuffer buffer(0, 100000);
    first = buffer.data();
  }
  {
    const PinnedBuffer buffer(0, 100001);
    CHECK(buffer.data() == first);
  }
  gpu.fail("cuMemHostAlloc", 1, 2);
  CHECK_THROWS(CudaError, "bytes of pinned memory: move the array in parts", PinnedBuffer(0, 50 << 20));
  trim_pinned();
  CHECK_EQ(gpu.call("fake_pinned"), before);
}

RDMATX_TEST_MAIN()
