#include "bindings/references.hpp"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace rdmatx::bindings {
namespace {

/// A strong reference to an object, or to an export of its buffer.
struct Reference {
  PyObject* object = nullptr;
  Py_buffer view{};

  /// Needs the GIL.
  void drop() noexcept {
    if (object) {
      Py_DECREF(object);
    } else {
      PyBuffer_Release(&view);
    }
    delete this;
  }
};

thread_local bool deferring = false;

class PendingReferences {
 public:
  /// Takes a reference that its last user gave up on some thread.
  void give(Reference* reference) noexcept {
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return;  // left to the end of the process
      if (deferring || !PyGILState_Check()) {
        waiting_.push_back(reference);
        count_.store(waiting_.size(), std::memory_order_release);
        // Has the main thread drop it soon; where its queue is full, the next call into the extension does.
        if (waiting_.size() == 1 && !deferring) Py_AddPendingCall(&run, nullptr);
        return;
      }
    }
    reference->drop();
  }

  void release() noexcept {
    if (count_.load(std::memory_order_acquire) == 0) return;
    std::vector<Reference*> dropped;
    {
      std::lock_guard lock(mutex_);
      dropped.swap(waiting_);
      count_.store(0, std::memory_order_release);
    }
    for (Reference* reference : dropped) reference->drop();  // outside the lock: it may run any Python code
  }

  void stop() noexcept {
    release();
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }

 private:
  static int run(void*) noexcept;

  std::mutex mutex_;
  std::vector<Reference*> waiting_;
  std::atomic<size_t> count_{0};
  bool stopped_ = false;
};

PendingReferences& pending() {
  static auto* references = new PendingReferences;  // threads may outlive static destructors
  return *references;
}

int PendingReferences::run(void*) noexcept {
  pending().release();
  return 0;
}

std::shared_ptr<void> hold(Reference* reference) {
  return {reference, [](void* held) { pending().give(static_cast<Reference*>(held)); }};
}

}  // namespace

std::shared_ptr<void> hold_object(pybind11::handle object) {
  auto* reference = new Reference;
  reference->object = object.inc_ref().ptr();
  return hold(reference);
}

std::shared_ptr<void> hold_export(const Py_buffer& view) {
  auto* reference = new Reference;
  reference->view = view;
  return hold(reference);
}

void release_pending_references() {
  pending().release();
}

ReleasesDeferred::ReleasesDeferred() noexcept {
  release_pending_references();
  deferring = true;
}

ReleasesDeferred::~ReleasesDeferred() {
  deferring = false;
  release_pending_references();
}

void stop_releasing_references() {
  pending().stop();
}

}  // namespace rdmatx::bindings
