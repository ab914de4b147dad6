// Messages, writes and reads of a GPU's memory between two connections of this process, on the fake driver:
// by dma-buf, by peer memory, and through pinned memory.

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "check.hpp"
#include "gpu/fake_gpu.hpp"
#include "messaging/context.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

constexpr double patience = 30;

/// The software HCA, without dma-bufs, or with a peer memory module (reg_mr takes a GPU's addresses).
Verbs table(bool dma_buf, bool peer_memory) {
  Verbs verbs = *soft_verbs();
  if (!dma_buf)
    verbs.reg_dmabuf_mr = [](ibv_pd*, uint64_t, size_t, uint64_t, int, int) -> ibv_mr* {
      errno = EOPNOTSUPP;
      return nullptr;
    };
  if (peer_memory)
    verbs.reg_mr = [](ibv_pd* domain, void* address, size_t bytes, int access) -> ibv_mr* {
      if (describe_pointer(address).kind != PointerKind::device)
        return soft_verbs()->reg_mr(domain, address, bytes, access);
      const DmaBuf exported = export_dma_buf(0, {reinterpret_cast<uint64_t>(address), bytes});
      return soft_verbs()->reg_dmabuf_mr(domain, exported.offset, bytes, reinterpret_cast<uint64_t>(address),
                                         exported.fd.get(), access);
    };
  return verbs;
}

struct Pair {
  explicit Pair(const Verbs* verbs = soft_verbs(), GpuDirect direct = GpuDirect::automatic,
                bool verify = false)
      : context(Device::open(verbs), patience, verify, direct),
        listener(context.listen("127.0.0.1:0")),
        one(context.connect(listener->address(), patience)),
        other(listener->accept(patience)) {}
  ~Pair() { context.close(); }
  Context context;
  std::shared_ptr<Listener> listener;
  std::shared_ptr<Connection> one, other;

  std::string way() {
    const auto choices = one->gpu_choices();
    return choices.empty() ? "none" : gpu_way_name(choices.front().way);
  }
};

OperationMemory on_gpu(const FakeMemory& memory, size_t offset, size_t bytes,
                       std::optional<StreamHandle> stream = 0) {
  void* data = reinterpret_cast<void*>(memory.address() + offset);
  OperationMemory made{data, bytes};
  made.device = device_memory_at(data, bytes, stream);
  return made;
}

OperationMemory on_host(std::vector<unsigned char>& bytes) {
  return {bytes.data(), bytes.size()};
}

/// Every operation, between GPUs and between a GPU and the host.
void move_everything(Pair& pair, const FakeMemory& source, const FakeMemory& target, size_t offset,
                     size_t bytes) {
  FakeGpu& gpu = FakeGpu::get();
  const auto sent = pattern(bytes, static_cast<unsigned>(offset + bytes));
  const auto check = [&] { CHECK(gpu.take(target.address() + offset + 1, bytes) == sent); };
  const auto clear = [&] { gpu.put(target.address() + offset + 1, std::vector<unsigned char>(bytes)); };
  gpu.put(source.address() + offset, sent);

  clear();
  auto receive = pair.other->ireceive(on_gpu(target, offset + 1, bytes), 3);
  pair.one->send(on_gpu(source, offset, bytes), 3, patience);
  pair.other->wait(receive, patience);
  CHECK_EQ(receive->bytes(), bytes);
  check();

  std::vector<unsigned char> here(bytes);
  receive = pair.other->ireceive(on_host(here), 4);
  pair.one->send(on_gpu(source, offset, bytes), 4, patience);
  pair.other->wait(receive, patience);
  CHECK(here == sent);

  clear();
  auto from_host = sent;
  auto send = pair.one->isend(on_host(from_host), 5);
  CHECK_EQ(pair.other->receive(on_gpu(target, offset + 1, bytes), TagChoice(5), patience), bytes);
  pair.one->wait(send, patience);
  check();

  std::vector<unsigned char> there(bytes);
  const auto region =
      pair.context.register_memory(on_host(there), false, RemoteAccess::read | RemoteAccess::write);
  pair.one->wait(pair.one->write(on_gpu(source, offset, bytes), region->key(), 0, 7), patience);
  CHECK_EQ(pair.other->next_notification(patience), 7u);
  CHECK(there == sent);
  clear();
  pair.one->wait(pair.one->read(on_gpu(target, offset + 1, bytes), region->key(), 0), patience);
  check();
  std::fill(there.begin(), there.end(), static_cast<unsigned char>(0));
  const size_t half = bytes / 2;
  std::vector<unsigned char> second(sent.begin() + static_cast<std::ptrdiff_t>(half), sent.end());
  std::vector<Connection::Block> blocks;
  blocks.push_back({on_host(second), region->key(), half});
  blocks.push_back({on_gpu(source, offset, half), region->key(), 0});
  pair.one->wait(pair.one->write_many(std::move(blocks)), patience);
  CHECK(there == sent);
}

}  // namespace

TEST(by_dma_buf) {
  Pair pair;
  const FakeMemory source(1 << 20), target(1 << 20);
  for (const size_t bytes : {1, 100, 8192, 8193, 100000, 1000000})
    move_everything(pair, source, target, 4093, bytes);
  CHECK_EQ(pair.way(), "dma-buf");
  CHECK(pair.context.describe().find("GPU 0: dma-buf") != std::string::npos);
}

TEST(across_mapped_pieces) {
  const Verbs without = table(false, false);
  for (const Verbs* verbs : {soft_verbs(), &without}) {
    Pair pair(verbs);
    const FakeMemory source(std::vector<size_t>{65536, 131072, 65536}),
        target(std::vector<size_t>{131072, 65536, 131072});
    for (const size_t offset : {0, 1, 65535, 65536, 60000})
      move_everything(pair, source, target, offset, 196608 - 1);
  }
}

TEST(by_peer_memory) {
  const Verbs verbs = table(false, true);
  Pair pair(&verbs);
  const FakeMemory source(1 << 20), target(1 << 20);
  for (const size_t bytes : {100, 8193, 1000000}) move_everything(pair, source, target, 12345, bytes);
  CHECK_EQ(pair.way(), "peer memory");
  CHECK(pair.one->gpu_choices().front().reason.find("not by dma-buf: ibv_reg_dmabuf_mr") !=
        std::string::npos);
}

TEST(through_pinned_memory) {
  const Verbs verbs = table(false, false);
  FakeGpu::get().set("delay_us", 200);
  {
    Pair pair(&verbs);
    const FakeMemory source(8 << 20), target(8 << 20);
    for (const size_t bytes : {1, 8193, 1 << 20, 5000000}) move_everything(pair, source, target, 77, bytes);
    CHECK_EQ(pair.way(), "staging");
    const std::string reason = pair.one->gpu_choices().front().reason;
    CHECK(reason.find("not by dma-buf") != std::string::npos);
    CHECK(reason.find("not by peer memory: ibv_reg_mr") != std::string::npos);
    CHECK_THROWS(UnavailableError,
                 "cannot be registered, so that peers reach it by themselves: not by dma-buf",
                 pair.context.register_memory(on_gpu(source, 0, 4096), false, RemoteAccess::read));
  }
  FakeGpu::get().set("delay_us", 0);
  CHECK_EQ(FakeGpu::get().call("fake_faults"), 0);
}

TEST(managed_and_pooled_memory_go_through_pinned_memory_and_decide_nothing) {
  Pair pair;
  const FakeMemory managed(1 << 20, "cuMemAllocManaged"), device(1 << 20), other(1 << 20);
  unsigned long long address = 0;
  FakeGpu::get().must("cuMemAllocAsync", &address, size_t{1} << 20, static_cast<void*>(nullptr));
  const auto bytes = pattern(500000);
  FakeGpu::get().put(address, bytes);
  void* data = reinterpret_cast<void*>(address);
  OperationMemory pooled{data, bytes.size()};
  pooled.device = device_memory_at(data, bytes.size(), 0);
  auto receive = pair.other->ireceive(on_gpu(managed, 3, bytes.size()), 1);
  pair.one->send(std::move(pooled), 1, patience);
  pair.other->wait(receive, patience);
  CHECK(FakeGpu::get().take(managed.address() + 3, bytes.size()) == bytes);
  CHECK_EQ(pair.way(), "none");
  move_everything(pair, device, other, 0, 300000 - 1);
  CHECK_EQ(pair.way(), "dma-buf");
  FakeGpu::get().must("cuMemFreeAsync", address, static_cast<void*>(nullptr));
  FakeGpu::get().must("cuStreamSynchronize", static_cast<void*>(nullptr));
}

TEST(checksums_are_made_of_what_was_copied) {
  Pair pair(soft_verbs(), GpuDirect::automatic, true);
  CHECK(pair.one->verifies());
  const FakeMemory source(1 << 20), target(1 << 20);
  for (const size_t bytes : {100, 700000}) move_everything(pair, source, target, 5, bytes);
}

TEST(an_export_that_fails_late_rolls_back_and_goes_another_way) {
  Pair pair;
  FakeGpu& gpu = FakeGpu::get();
  const FakeMemory source(std::vector<size_t>{65536, 65536, 65536}), target(1 << 20), other(1 << 20);
  move_everything(pair, target, other, 0, 100000 - 1);
  CHECK_EQ(pair.way(), "dma-buf");
  const int64_t regions = live_objects(ObjectKind::memory_region);
  gpu.fail("cuMemGetHandleForAddressRange", 3, 999);
  const auto bytes = pattern(196608);
  gpu.put(source.address(), bytes);
  std::vector<unsigned char> here(bytes.size());
  auto receive = pair.other->ireceive(on_host(here), 0);
  pair.one->send(on_gpu(source, 0, bytes.size()), 0, patience);
  pair.other->wait(receive, patience);
  CHECK(here == bytes);
  CHECK_EQ(pair.way(), "dma-buf");
  CHECK_EQ(live_objects(ObjectKind::memory_region), regions);
  gpu.fail("cuMemGetHandleForAddressRange", 3, 999);
  CHECK_THROWS(UnavailableError, "CUDA_ERROR_UNKNOWN (999)",
               pair.context.register_memory(on_gpu(source, 0, bytes.size()), false, RemoteAccess::read));
  CHECK_EQ(live_objects(ObjectKind::memory_region), regions);
}

TEST(required_is_an_error_with_the_reason) {
  const Verbs verbs = table(false, false);
  Pair pair(&verbs, GpuDirect::required);
  const FakeMemory memory(1 << 20);
  CHECK_THROWS(UnavailableError,
               "gpu_direct=\"require\", and this memory of GPU 0 would have to go through the host's",
               pair.one->isend(on_gpu(memory, 0, 100000), 0));
  CHECK_THROWS(UnavailableError, "not by peer memory",
               pair.one->ireceive(on_gpu(memory, 0, 100000), TagChoice(0)));
  // What is small goes through a slot anyway.
  auto receive = pair.other->ireceive(on_gpu(memory, 4096, 100), 0);
  pair.one->send(on_gpu(memory, 0, 100), 0, patience);
  pair.other->wait(receive, patience);
}

TEST(off_is_never) {
  Pair pair(soft_verbs(), GpuDirect::off);
  const FakeMemory source(1 << 20), target(1 << 20);
  const int64_t before = FakeGpu::get().call("fake_calls", "cuMemGetHandleForAddressRange");
  move_everything(pair, source, target, 0, 300000);
  CHECK_EQ(FakeGpu::get().call("fake_calls", "cuMemGetHandleForAddressRange"), before);
  CHECK_EQ(parse_gpu_direct("off"), GpuDirect::off);
  CHECK_THROWS(UsageError, "gpu_direct is \"on\"", parse_gpu_direct("on"));
}

TEST(a_region_of_a_gpu_is_reached_by_the_peer) {
  Pair pair;
  FakeGpu& gpu = FakeGpu::get();
  gpu.set("flush", 1);
  const FakeMemory one(1 << 20), many(std::vector<size_t>{65536, 131072, 65536});
  const FakeMemory* const both[] = {&one, &many};
  for (const FakeMemory* memory : both) {
    const size_t bytes = 200001, offset = 60001;
    const auto region =
        pair.context.register_memory(on_gpu(*memory, 1, bytes + offset), false,
                                     RemoteAccess::read | RemoteAccess::write | RemoteAccess::atomic);
    const RemoteKey key = RemoteKey::from_bytes(region->key().to_bytes());
    CHECK(key == region->key());
    CHECK_EQ(key.pieces.size(), memory == &many ? 3u : 0u);
    auto sent = pattern(bytes, 3);
    const int flushes = gpu.call("fake_flushes");
    pair.one->wait(pair.one->write(on_host(sent), key, offset, 9), patience);
    CHECK_EQ(pair.other->next_notification(patience), 9u);
    CHECK_EQ(gpu.call("fake_flushes"), flushes + 1);
    CHECK(gpu.take(memory->address() + 1 + offset, bytes) == sent);
    std::vector<unsigned char> back(bytes);
    pair.one->wait(pair.one->read(on_host(back), key, offset), patience);
    CHECK(back == sent);
    const auto atomic = pair.one->fetch_add(key, 60007, 5);
    pair.one->wait(atomic, patience);
    // The region as memory of this side's operations: nothing is registered again.
    OperationMemory own{reinterpret_cast<void*>(memory->address() + 1 + offset), bytes};
    own.region = region->registration();
    own.device = part_of_device_memory(*region->device(), own.data, bytes, 0);
    const int64_t exports = gpu.call("fake_calls", "cuMemGetHandleForAddressRange");
    auto receive = pair.other->ireceive(own, 1);
    pair.one->send(on_host(sent), 1, patience);
    pair.other->wait(receive, patience);
    CHECK_EQ(gpu.call("fake_calls", "cuMemGetHandleForAddressRange"), exports);
    CHECK(gpu.take(memory->address() + 1 + offset, bytes) == sent);
  }
  gpu.set("flush", 0);
}

TEST(a_short_message_lands_in_a_large_receive) {
  Pair pair;
  const FakeMemory memory(1 << 20);
  auto receive = pair.other->ireceive(on_gpu(memory, 11, 1000000), 0);
  auto sent = pattern(5000);
  pair.one->send(on_host(sent), 0, patience);
  pair.other->wait(receive, patience);
  CHECK_EQ(receive->bytes(), 5000u);
  CHECK(FakeGpu::get().take(memory.address() + 11, 5000) == sent);
}

TEST(a_failed_kernel_fails_the_operation_and_not_the_connection) {
  Pair pair;
  const FakeMemory memory(1 << 20), other(1 << 20);
  FakeGpu::get().fail("cuEventQuery", 1, 700);
  CHECK_THROWS(CudaError, "CUDA_ERROR_ILLEGAL_ADDRESS",
               pair.one->send(on_gpu(memory, 0, 500000), 0, patience));
  move_everything(pair, memory, other, 0, 300000 - 1);
}

TEST(a_dropped_connection_leaves_nothing) {
  FakeGpu& gpu = FakeGpu::get();
  gpu.set("delay_us", 2000);
  const int events = gpu.call("fake_events");
  const int64_t regions = live_objects(ObjectKind::memory_region);
  {
    const FakeMemory memory(4 << 20);
    for (int round = 0; round < 10; ++round) {
      Pair pair(soft_verbs(), round % 2 == 0 ? GpuDirect::off : GpuDirect::automatic);
      auto send = pair.one->isend(on_gpu(memory, 0, 4 << 20), 0);
      auto receive = pair.one->ireceive(on_gpu(memory, 0, 4 << 20), TagChoice(0));
      pair.one->close();
      CHECK_THROWS(ClosedError, "", send->check());
    }
  }
  gpu.set("delay_us", 0);
  FakeMemory(64);
  // What was still copied is let go with the next operation.
  for (int i = 0; i < 1000 && gpu.call("fake_events") > events; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const DeviceOperation next;
  }
  CHECK_EQ(gpu.call("fake_events"), events);
  CHECK_EQ(live_objects(ObjectKind::memory_region), regions);
}

int main(int argc, char** argv) {
  set_log_sink([](LogLevel, const char*) {});
  return run_cases(argc > 1 ? argv[1] : "") == 0 ? 0 : 1;
}
