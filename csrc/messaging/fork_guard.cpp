#include "messaging/fork_guard.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <vector>

#include "base/error.hpp"
#include "rdma/handle.hpp"

namespace rdmatx {
namespace {

struct Descriptors {
  std::mutex mutex;
  std::vector<int> open;
};

// Never destroyed: a fork may happen while static objects are being destroyed.
Descriptors& descriptors() {
  static auto* all = new Descriptors;
  return *all;
}

void before_fork() {
  descriptors().mutex.lock();
}
void in_parent() {
  descriptors().mutex.unlock();
}

// Only async-signal-safe calls: another thread of the parent may have held any lock.
void in_child() {
  Descriptors& all = descriptors();
  if (!all.open.empty()) {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    // dup2 keeps the number taken, so that whoever closes it later closes nothing else.
    for (int fd : all.open)
      if (nothing >= 0) ::dup2(nothing, fd);
    if (nothing >= 0) ::close(nothing);
  }
  all.mutex.unlock();
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(before_fork, in_parent, in_child); });
}

}  // namespace

void check_not_forked(int generation) {
  if (process_generation() == generation) return;
  throw UsageError(
      "this process was forked from the one that opened the rdmatx Context, and connections do not pass a "
      "fork: "
      "open a Context of its own in the child, or start the child with the \"spawn\" method");
}

void neutralize_in_child(int fd) {
  install();
  const std::lock_guard lock(descriptors().mutex);
  descriptors().open.push_back(fd);
}

void forget_descriptor(int fd) noexcept {
  const std::lock_guard lock(descriptors().mutex);
  std::erase(descriptors().open, fd);
}

}  // namespace rdmatx
