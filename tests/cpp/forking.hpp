#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace rdmatx::testing {

/// Whether a thread of this process other than the caller is anything but asleep.
inline bool another_thread_runs() {
  const std::string own = std::to_string(syscall(SYS_gettid));
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (thread.path().filename() == own) continue;
    std::ifstream file(thread.path() / "stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const size_t name_end = text.rfind(')');  // the name may have anything in it; the state is behind it
    if (name_end != std::string::npos && text.substr(name_end + 1, 2) != " S") return true;
  }
  return false;
}

/// fork(), while the other threads sleep. Not every address sanitizer takes its allocator's locks for a fork
/// (GCC 12's does not): the child of a process in which a thread allocates just then may wait for them for
/// ever.
inline pid_t fork_at_rest() {
  for (int looks = 0; looks < 10'000 && another_thread_runs(); ++looks) usleep(100);
  return fork();
}

}  // namespace rdmatx::testing
