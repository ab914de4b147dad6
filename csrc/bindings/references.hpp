#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace rdmatx::bindings {

// C++ threads never touch a Python object. A reference that is dropped without the GIL goes to a list, which
// is emptied by whoever holds the GIL next; once the interpreter ends, references are left to the end of the
// process.

/// A reference that may be dropped on any thread, with or without the GIL, and after the interpreter has
/// gone.
std::shared_ptr<void> hold_object(pybind11::handle object);

/// The same for an export of the buffer protocol; takes it over.
std::shared_ptr<void> hold_export(const Py_buffer& view);

/// Drops the references that other threads gave up meanwhile. Needs the GIL. Cheap where there are none.
void release_pending_references();

/// While it lives, references that this thread gives up are kept, though it has the GIL, and dropped when it
/// ends: for calls that take a lock, under which no Python code may run.
class ReleasesDeferred {
 public:
  ReleasesDeferred() noexcept;
  ~ReleasesDeferred();
  ReleasesDeferred(const ReleasesDeferred&) = delete;
  ReleasesDeferred& operator=(const ReleasesDeferred&) = delete;
};

/// From now on nothing is dropped any more: the first step of the interpreter's exit.
void stop_releasing_references();

}  // namespace rdmatx::bindings
