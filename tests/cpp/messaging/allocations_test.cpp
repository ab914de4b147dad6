// What is done over and over allocates nothing once it is under way.

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>

#include "check.hpp"
#include "messaging/connection_pair.hpp"

namespace {

std::atomic<uint64_t> allocations{0};

}  // namespace

// The whole family: a sanitizer that finds one of it missing puts its own there, and takes the other's free()
// for a mistake. Never inlined: GCC takes free() for a mistake too where it sees it beside operator new.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto unit = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

constexpr int rounds = 2000;
// What looks after a connection a few times a second may.
constexpr uint64_t few = rounds / 100;

uint64_t allocated_by(const std::function<void()>& round) {
  for (int i = 0; i < rounds; ++i) round();  // queues reach their size
  const uint64_t before = allocations;
  for (int i = 0; i < rounds; ++i) round();
  return allocations - before;
}

}  // namespace

TEST(small_messages_allocate_nothing) {
  Pair pair;
  auto data = content(64, 1);
  std::vector<uint8_t> received(64);
  CHECK(allocated_by([&] {
          pair.near->send(memory_of(data), 1, patience);
          pair.far->receive(memory_of(received), 1, patience);
        }) < few);
  CHECK(received == data);
  // The receive is there first, and both are requests.
  CHECK(allocated_by([&] {
          const auto receive = pair.far->ireceive(memory_of(received), 1);
          const auto send = pair.near->isend(memory_of(data), 1);
          pair.near->wait(send, patience);
          pair.far->wait(receive, patience);
        }) < few);
}

TEST(small_writes_reads_and_atomics_allocate_nothing) {
  Pair pair;
  std::vector<uint8_t> memory(4096);
  const auto region = pair.context->register_memory(
      memory_of(memory), false, RemoteAccess::read | RemoteAccess::write | RemoteAccess::atomic);
  const RemoteKey key = region->key();
  auto data = content(64, 1);
  CHECK(allocated_by([&] {
          pair.near->wait(pair.near->write(memory_of(data), key, 0, 7), patience);
          pair.far->next_notification(patience);
        }) < few);
  CHECK(allocated_by([&] { pair.near->wait(pair.near->write(memory_of(data), key, 0), patience); }) < few);
}

RDMATX_TEST_MAIN()
