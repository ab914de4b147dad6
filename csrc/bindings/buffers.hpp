#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <string>

namespace rdmatx::bindings {

/// Memory that a Python object exports: one dense range of bytes.
struct BufferView {
  void* data = nullptr;
  size_t bytes = 0;
  bool readonly = false;
  /// Holds the object's export (or the object) until it is dropped. May be dropped on any thread, with or
  /// without the GIL, and after the interpreter has gone.
  std::shared_ptr<void> keepalive;
};

enum class Wanted { read, write };

/// The one place that turns a Python object into memory: bytes, bytearray, memoryview, mmap, array, numpy,
/// torch (any dtype), DLPack, __array_interface__, rdmatx.empty(). Needs the GIL.
/// Throws UsageError for an object without memory, for read-only memory that is to be written, and for memory
/// that is not C-contiguous; UnavailableError for memory of an accelerator. `what` names the argument.
BufferView acquire_buffer(pybind11::handle object, Wanted wanted, const char* what = "buffer");

/// A reference to any Python object that may be dropped anywhere, as BufferView::keepalive.
std::shared_ptr<void> hold_object(pybind11::handle object);

/// Drops the references that other threads gave up meanwhile. Needs the GIL. Cheap where there are none.
void release_pending_references();

}  // namespace rdmatx::bindings
