#include "rdma/handle.hpp"

#include <pthread.h>

#include <array>
#include <atomic>

#include "base/log.hpp"

namespace rdmatx {
namespace {

constexpr size_t kind_count = static_cast<size_t>(ObjectKind::count);
std::array<std::atomic<int64_t>, kind_count> live_counts{};
std::atomic<int> generation{0};

/// The child of a fork starts anew: what it inherited is not its own.
void after_fork() {
  generation.fetch_add(1, std::memory_order_relaxed);
  for (auto& count : live_counts) count.store(0, std::memory_order_relaxed);
}

[[maybe_unused]] const int at_fork_registered = pthread_atfork(nullptr, nullptr, after_fork);

}  // namespace

const char* object_kind_name(ObjectKind kind) noexcept {
  switch (kind) {
    case ObjectKind::device:
      return "device";
    case ObjectKind::protection_domain:
      return "protection_domain";
    case ObjectKind::memory_region:
      return "memory_region";
    case ObjectKind::completion_channel:
      return "completion_channel";
    case ObjectKind::completion_queue:
      return "completion_queue";
    case ObjectKind::shared_receive_queue:
      return "shared_receive_queue";
    case ObjectKind::queue_pair:
      return "queue_pair";
    case ObjectKind::count:
      break;
  }
  return "unknown";
}

int64_t live_objects(ObjectKind kind) noexcept {
  return live_counts[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
}

int process_generation() noexcept {
  return generation.load(std::memory_order_relaxed);
}

namespace detail {

void count_object(ObjectKind kind, int change) noexcept {
  live_counts[static_cast<size_t>(kind)].fetch_add(change, std::memory_order_relaxed);
}

void report_failed_free(ObjectKind kind, int code) noexcept {
  try {
    log(LogLevel::error,
        std::string("a ") + object_kind_name(kind) + " could not be freed: " + describe_errno(code) +
            "; it is left to the end of the process. This is a bug of rdmatx or of the provider.");
  } catch (...) {  // no memory for the text: nothing left to say it with
  }
}

}  // namespace detail
}  // namespace rdmatx
