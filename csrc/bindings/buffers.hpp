#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "messaging/strided.hpp"

namespace rdmatx::bindings {

/// Memory that a Python object exports: one dense range of bytes, or elements at strides.
struct BufferView {
  void* data = nullptr;
  size_t bytes = 0;
  bool readonly = false;
  /// Where the elements lie, `bytes` together, if not one after another; `data` is the first one then.
  std::shared_ptr<const StridedLayout> layout;
  /// On a GPU, or said to be: no processor may touch it. `layout` is null then.
  bool on_gpu = false;
  /// Of memory on a GPU: the stream that its work is in now, where the object knows it.
  std::optional<uint64_t> stream;
  /// Of memory on a GPU: the object asks for no order with any stream.
  bool unordered = false;
  /// Holds the object's export (or the object) until it is dropped; see references.hpp.
  std::shared_ptr<void> keepalive;
};

enum class Wanted { read, write };

/// How long the memory is used: a call or an operation trusts the object not to swap its memory meanwhile; a
/// registration holds the memory itself (of a torch tensor its storage), whatever becomes of the object.
enum class Lifetime { operation, registration };

/// Whether elements that do not lie one after another are taken.
enum class Shape { dense, strided };

/// Whether memory of a GPU is taken.
enum class Place { host, anywhere };

/// The one place that turns a Python object into memory: bytes, bytearray, memoryview, mmap, array, numpy,
/// torch (any dtype; requires_grad does not matter, this is below autograd), DLPack, __array_interface__,
/// rdmatx.empty(), __cuda_array_interface__. Needs the GIL.
/// Throws UsageError for an object without memory, for read-only memory that is to be written, and for memory
/// that is not C-contiguous where that is asked for, or on a GPU; UnavailableError for memory of an
/// accelerator that is not taken. `what` names the argument.
BufferView acquire_buffer(pybind11::handle object, Wanted wanted, const char* what = "buffer",
                          Lifetime lifetime = Lifetime::operation, Shape shape = Shape::dense,
                          Place place = Place::host);

}  // namespace rdmatx::bindings
