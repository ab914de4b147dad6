// Streams, events and copies of the fake driver; see fake.hpp. A stream's thread lives while there is work.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <thread>

#include "fake.hpp"

namespace fake {
namespace {

struct Stream {
  std::mutex mutex;
  std::condition_variable idle;
  std::deque<std::function<void()>> work;
  bool runs = false;
  std::atomic<bool> captured{false};
};

/// Recorded anew, an event is reached when its last record is.
struct Event {
  std::mutex mutex;
  std::condition_variable reached;
  uint64_t recorded = 0, done = 0;
};

Stream* stream_of(void* handle) {
  static auto* defaults = new Stream[3];
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 2) return &defaults[number == 2 ? 1 : 0];
  return static_cast<std::shared_ptr<Stream>*>(handle)->get();
}

std::atomic<int> live_streams{0}, live_events{0};

void delay() {
  const int64_t most = setting("delay_us");
  if (most <= 0) return;
  thread_local std::mt19937_64 random(std::random_device{}());
  std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<uint64_t>(most + 1)));
}

void run(Stream& stream) {
  std::unique_lock lock(stream.mutex);
  while (!stream.work.empty()) {
    const auto next = std::move(stream.work.front());
    lock.unlock();
    delay();
    next();
    lock.lock();
    stream.work.pop_front();
  }
  stream.runs = false;
  stream.idle.notify_all();
}

}  // namespace

Result enqueue(void* handle, std::function<void()> work) {
  Stream* stream = stream_of(handle);
  // A thread that outlives its stream's handle keeps the stream.
  std::shared_ptr<Stream> kept;
  if (reinterpret_cast<uintptr_t>(handle) > 2) kept = *static_cast<std::shared_ptr<Stream>*>(handle);
  const std::lock_guard lock(stream->mutex);
  stream->work.push_back(std::move(work));
  if (!stream->runs) {
    stream->runs = true;
    std::thread([stream, kept] { run(*stream); }).detach();
  }
  return success;
}

Result drain(void* handle) {
  Stream* stream = stream_of(handle);
  std::unique_lock lock(stream->mutex);
  stream->idle.wait(lock, [&] { return !stream->runs; });
  return success;
}

}  // namespace fake

using fake::Pointer;
using fake::Result;
using Stream = std::shared_ptr<fake::Stream>;
using Event = std::shared_ptr<fake::Event>;

FAKE_EXPORT Result cuStreamCreate(void** stream, unsigned) {
  FAKE_CALL_IN_CONTEXT(cuStreamCreate);
  *stream = new Stream(std::make_shared<fake::Stream>());
  ++fake::live_streams;
  return fake::success;
}

FAKE_EXPORT Result cuStreamDestroy_v2(void* stream) {
  FAKE_CALL_IN_CONTEXT(cuStreamDestroy_v2);
  delete static_cast<Stream*>(stream);
  --fake::live_streams;
  return fake::success;
}

FAKE_EXPORT Result cuStreamSynchronize(void* stream) {
  FAKE_CALL_IN_CONTEXT(cuStreamSynchronize);
  return fake::drain(stream);
}

FAKE_EXPORT Result cuStreamIsCapturing(void* stream, int* status) {
  FAKE_CALL_IN_CONTEXT(cuStreamIsCapturing);
  *status = fake::stream_of(stream)->captured ? 1 : 0;
  return fake::success;
}

FAKE_EXPORT Result cuStreamBeginCapture_v2(void* stream, int) {
  FAKE_CALL_IN_CONTEXT(cuStreamBeginCapture_v2);
  fake::stream_of(stream)->captured = true;
  return fake::success;
}

FAKE_EXPORT Result cuStreamEndCapture(void* stream, void** graph) {
  FAKE_CALL_IN_CONTEXT(cuStreamEndCapture);
  fake::stream_of(stream)->captured = false;
  *graph = nullptr;
  return fake::success;
}

FAKE_EXPORT Result cuStreamWaitEvent(void* stream, void* handle, unsigned) {
  FAKE_CALL_IN_CONTEXT(cuStreamWaitEvent);
  const Event event = *static_cast<Event*>(handle);
  uint64_t awaited;
  {
    const std::lock_guard lock(event->mutex);
    awaited = event->recorded;
  }
  return fake::enqueue(stream, [event, awaited] {
    std::unique_lock lock(event->mutex);
    event->reached.wait(lock, [&] { return event->done >= awaited; });
  });
}

FAKE_EXPORT Result cuEventCreate(void** event, unsigned) {
  FAKE_CALL_IN_CONTEXT(cuEventCreate);
  *event = new Event(std::make_shared<fake::Event>());
  ++fake::live_events;
  return fake::success;
}

FAKE_EXPORT Result cuEventDestroy_v2(void* event) {
  FAKE_CALL(cuEventDestroy_v2);
  delete static_cast<Event*>(event);
  --fake::live_events;
  return fake::success;
}

FAKE_EXPORT Result cuEventRecord(void* handle, void* stream) {
  FAKE_CALL_IN_CONTEXT(cuEventRecord);
  const Event event = *static_cast<Event*>(handle);
  uint64_t number;
  {
    const std::lock_guard lock(event->mutex);
    number = ++event->recorded;
  }
  return fake::enqueue(stream, [event, number] {
    const std::lock_guard lock(event->mutex);
    event->done = number;
    event->reached.notify_all();
  });
}

FAKE_EXPORT Result cuEventQuery(void* handle) {
  FAKE_CALL_IN_CONTEXT(cuEventQuery);
  fake::Event& event = **static_cast<Event*>(handle);
  const std::lock_guard lock(event.mutex);
  return event.done >= event.recorded ? fake::success : fake::not_ready;
}

FAKE_EXPORT Result cuEventSynchronize(void* handle) {
  FAKE_CALL_IN_CONTEXT(cuEventSynchronize);
  const Event event = *static_cast<Event*>(handle);
  std::unique_lock lock(event->mutex);
  event->reached.wait(lock, [&] { return event->done >= event->recorded; });
  return fake::success;
}

// ---- copies: what is not allocated when the work runs is a fault

namespace {

std::byte* reach_or_fault(Pointer pointer, size_t bytes) {
  std::byte* memory = fake::reach(pointer, bytes);
  if (!memory) fake::fault();
  return memory;
}

/// Copies piece by piece: a range may span mapped segments.
template <typename Copy>
void for_each_piece(Pointer pointer, size_t bytes, Copy copy) {
  constexpr size_t step = 4096;
  for (size_t at = 0; at < bytes;) {
    const size_t size = std::min<size_t>(bytes - at, step - (pointer + at) % step);
    if (std::byte* memory = reach_or_fault(pointer + at, size)) copy(memory, at, size);
    at += size;
  }
}

}  // namespace

FAKE_EXPORT Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, void* stream) {
  FAKE_CALL_IN_CONTEXT(cuMemcpyHtoDAsync_v2);
  return fake::enqueue(stream, [=] {
    for_each_piece(to, bytes, [&](std::byte* memory, size_t at, size_t size) {
      std::memcpy(memory, static_cast<const std::byte*>(from) + at, size);
    });
  });
}

FAKE_EXPORT Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, void* stream) {
  FAKE_CALL_IN_CONTEXT(cuMemcpyDtoHAsync_v2);
  return fake::enqueue(stream, [=] {
    for_each_piece(from, bytes, [&](std::byte* memory, size_t at, size_t size) {
      std::memcpy(static_cast<std::byte*>(to) + at, memory, size);
    });
  });
}

FAKE_EXPORT Result cuMemsetD8Async(Pointer to, unsigned char value, size_t bytes, void* stream) {
  FAKE_CALL_IN_CONTEXT(cuMemsetD8Async);
  return fake::enqueue(stream, [=] {
    for_each_piece(to, bytes,
                   [&](std::byte* memory, size_t, size_t size) { std::memset(memory, value, size); });
  });
}

// ---- for tests

/// A kernel that adds to each byte, and so reads and writes; `microseconds` long.
FAKE_EXPORT Result fake_add(Pointer to, unsigned char value, size_t bytes, int64_t microseconds,
                            void* stream) {
  return fake::enqueue(stream, [=] {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    for_each_piece(to, bytes, [&](std::byte* memory, size_t, size_t size) {
      for (size_t i = 0; i < size; ++i) memory[i] = std::byte(static_cast<unsigned char>(memory[i]) + value);
    });
  });
}

/// A kernel that copies within a GPU.
FAKE_EXPORT Result fake_copy(Pointer to, Pointer from, size_t bytes, void* stream) {
  return fake::enqueue(stream, [=] {
    for_each_piece(to, bytes, [&](std::byte* target, size_t at, size_t size) {
      for_each_piece(from + at, size, [&](std::byte* source, size_t inner, size_t part) {
        std::memcpy(target + inner, source, part);
      });
    });
  });
}

/// What a test puts into device memory and looks at, at once and in no stream.
FAKE_EXPORT Result fake_put(Pointer to, const void* from, size_t bytes) {
  for_each_piece(to, bytes, [&](std::byte* memory, size_t at, size_t size) {
    std::memcpy(memory, static_cast<const std::byte*>(from) + at, size);
  });
  return fake::success;
}

FAKE_EXPORT Result fake_get(void* to, Pointer from, size_t bytes) {
  for_each_piece(from, bytes, [&](std::byte* memory, size_t at, size_t size) {
    std::memcpy(static_cast<std::byte*>(to) + at, memory, size);
  });
  return fake::success;
}

FAKE_EXPORT int fake_streams() {
  return fake::live_streams;
}

FAKE_EXPORT int fake_events() {
  return fake::live_events;
}
