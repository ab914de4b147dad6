#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <utility>

#include "forking.hpp"
#include "soft/ends.hpp"

namespace rdmatx::testing {

/// A child process at the other end of two pipes. Ended by the destructor.
class Child {
 public:
  explicit Child(const std::function<void(int in, int out)>& body) {
    CHECK(pipe(to_child_) == 0 && pipe(from_child_) == 0);
    pid_ = fork_at_rest();
    // Each keeps its own ends, so that the death of one is the end of the other's reading.
    for (int* end :
         pid_ == 0 ? std::array{&to_child_[1], &from_child_[0]} : std::array{&to_child_[0], &from_child_[1]})
      close(std::exchange(*end, -1));
    if (pid_ == 0) {
      int status = 0;
      try {
        body(to_child_[0], from_child_[1]);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        status = 1;
      }
      _exit(status);
    }
  }
  ~Child() {
    if (pid_ > 0) kill();
    for (const int fd : {to_child_[0], to_child_[1], from_child_[0], from_child_[1]})
      if (fd >= 0) close(fd);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  template <class T>
  void put(const T& value) const {
    CHECK_EQ(write(to_child_[1], &value, sizeof value), static_cast<ssize_t>(sizeof value));
  }
  template <class T>
  T get() const {
    T value{};
    CHECK_EQ(read(from_child_[0], &value, sizeof value), static_cast<ssize_t>(sizeof value));
    return value;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  /// Of SIGSTOP, returns when it has stopped.
  void signal(int number) const {
    ::kill(pid_, number);
    if (number == SIGSTOP) waitpid(pid_, nullptr, WUNTRACED);
  }
  int exit_status() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }

 private:
  int to_child_[2], from_child_[2];
  pid_t pid_;
};

inline Coordinates introduce(End& end, int in, int out) {
  const Coordinates own = end.coordinates();
  Coordinates other{};
  CHECK_EQ(write(out, &own, sizeof own), static_cast<ssize_t>(sizeof own));
  CHECK_EQ(read(in, &other, sizeof other), static_cast<ssize_t>(sizeof other));
  end.connect(other);
  return other;
}

inline Coordinates introduce(End& end, const Child& child) {
  const auto other = child.get<Coordinates>();
  child.put(end.coordinates());
  end.connect(other);
  return other;
}

inline void fill(End& end, unsigned seed) {
  for (size_t i = 0; i < end.size; ++i) end.memory[i] = static_cast<std::byte>(i * 7 + i / 4096 + seed);
}

inline bool holds(const End& end, size_t offset, size_t bytes, unsigned seed) {
  for (size_t i = offset; i < offset + bytes; ++i)
    if (end.memory[i] != static_cast<std::byte>(i * 7 + i / 4096 + seed)) return false;
  return true;
}

}  // namespace rdmatx::testing
