#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "bindings/references.hpp"

namespace rdmatx::bindings {

/// Gives the GIL up for a scope in which no Python object is touched.
///
/// A daemon thread may still be inside when the interpreter ends. Taking the GIL back then ends the thread,
/// by unwinding, which would run destructors that drop Python references, or abort at one that is noexcept.
/// Such a thread is left asleep instead, as Python itself does since 3.14; the end of the process takes it.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  ~GilReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

/// Runs `call` without the GIL, after dropping the references that other threads gave up.
template <class Call>
auto without_gil(Call call) {
  release_pending_references();
  const GilReleased released;
  return call();
}

/// A share whose last use may wait or join threads, which must not happen under the GIL.
template <typename T>
std::shared_ptr<T> freed_without_gil(std::shared_ptr<T> object) {
  T* raw = object.get();
  return {raw, [kept = std::move(object)](T*) mutable {
            if (!PyGILState_Check()) return kept.reset();
            const GilReleased released;
            kept.reset();
          }};
}

}  // namespace rdmatx::bindings
