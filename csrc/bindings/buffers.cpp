#include "bindings/buffers.hpp"

#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "bindings/device_buffers.hpp"
#include "bindings/dlpack.hpp"
#include "bindings/host_buffer.hpp"
#include "bindings/references.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

/// Who asks, for the messages.
struct BufferArgument {
  py::handle object;
  const char* what;
  Lifetime lifetime;
  Shape shape;
  Place place;

  std::string subject() const { return std::string(what) + " (" + Py_TYPE(object.ptr())->tp_name + ")"; }
};

[[noreturn]] void refuse_strided(const BufferArgument& argument) {
  throw UsageError(
      argument.subject() +
      " is not C-contiguous: its elements do not lie one after another in memory, and a registration is of "
      "one "
      "dense range. Register the array it is a view of, or a contiguous copy (torch: .contiguous(), numpy: "
      "numpy.ascontiguousarray); sends, receives, writes and reads take it as it is");
}

/// Elements of `item_bytes` at strides in bytes.
void set_layout(const BufferArgument& argument, BufferView& view, uint64_t item_bytes,
                const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  auto layout = std::make_shared<const StridedLayout>(view.data, item_bytes, shape, strides);
  view.bytes = layout->bytes();
  if (layout->is_dense()) return;
  if (argument.shape == Shape::dense) refuse_strided(argument);
  view.layout = std::move(layout);
}

[[noreturn]] void refuse_accelerator(const BufferArgument& argument, const std::string& device) {
  throw UnavailableError(argument.subject() + " is memory of an accelerator (" + device +
                         "), which cannot be used here. Copy it to the host first (torch: .cpu())");
}

[[noreturn]] void refuse_strided_on_gpu(const BufferArgument& argument) {
  throw UsageError(
      argument.subject() +
      " is not C-contiguous, and the memory of a GPU is moved as it lies: pass a contiguous copy "
      "(torch: .contiguous(), CuPy: cupy.ascontiguousarray)");
}

bool is_on_host(int32_t device) {
  return device == dlpack::cpu || device == dlpack::cuda_host || device == dlpack::rocm_host;
}

bool is_on_gpu(int32_t device) {
  return device == dlpack::cuda || device == dlpack::cuda_managed;
}

/// Takes the first line of the pending Python error's message: torch adds its C++ stack below.
std::string take_error_text() {
  const py::error_already_set error;
  const std::string text = py::str(error.value());
  return text.substr(0, text.find('\n'));
}

// ---- DLPack
// -------------------------------------------------------------------------------------------------

bool is_contiguous(const dlpack::Tensor& tensor) {
  if (!tensor.strides) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.dimensions - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

bool method_is_true(py::handle object, const char* method) {
  return py::hasattr(object, method) && py::cast<bool>(object.attr(method)());
}

/// A lazily conjugated or negated tensor shares memory that holds other values than it shows.
void refuse_lazy(const BufferArgument& argument, const dlpack::Tensor& tensor, int64_t elements,
                 bool contiguous) {
  const bool complex = tensor.type.code == dlpack::code_complex;
  // A real tensor can be negated only as the imaginary part of a conjugate: strided, unless it has one
  // element.
  if (!complex && elements > 1 && contiguous) return;
  if (complex && method_is_true(argument.object, "is_conj"))
    throw UsageError(argument.subject() + " is a lazy conjugate: pass .resolve_conj()");
  if (method_is_true(argument.object, "is_neg"))
    throw UsageError(argument.subject() + " is lazily negated: pass .resolve_neg()");
}

void set_layout(const BufferArgument& argument, BufferView& view, const dlpack::Tensor& tensor,
                size_t item_bits) {
  if (item_bits % 8 != 0)
    throw UsageError(argument.subject() + " is not C-contiguous, and its elements are of " +
                     std::to_string(item_bits) + " bits: pass a contiguous copy");
  const std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.dimensions);
  std::vector<int64_t> strides(tensor.strides, tensor.strides + tensor.dimensions);
  for (int64_t& stride : strides) stride *= static_cast<int64_t>(item_bits / 8);
  set_layout(argument, view, item_bits / 8, shape, strides);
}

BufferView view_of(const BufferArgument& argument, const dlpack::Tensor& tensor) {
  const int32_t device = tensor.device.type;
  const bool on_gpu = is_on_gpu(device);
  if (!is_on_host(device) && !(on_gpu && argument.place == Place::anywhere))
    refuse_accelerator(argument, "DLPack device type " + std::to_string(device) + ", number " +
                                     std::to_string(tensor.device.id));
  const bool contiguous = is_contiguous(tensor);
  if (!contiguous && on_gpu) refuse_strided_on_gpu(argument);
  if (!contiguous && argument.shape == Shape::dense) refuse_strided(argument);
  int64_t elements = 1;
  for (int32_t i = 0; i < tensor.dimensions; ++i) elements *= tensor.shape[i];
  refuse_lazy(argument, tensor, elements, contiguous);
  BufferView view;
  view.on_gpu = on_gpu;
  view.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  const size_t item_bits = size_t{tensor.type.bits} * tensor.type.lanes;
  if (contiguous)
    view.bytes = (static_cast<size_t>(elements) * item_bits + 7) / 8;
  else
    set_layout(argument, view, tensor, item_bits);
  if (!tensor.data && view.bytes != 0)
    throw UsageError(
        argument.subject() +
        " has no memory of its own (a fake, meta or distributed tensor?): pass the local tensor behind it");
  return view;
}

/// The exchange interface of a type, or null. Looked up once a type; types are few and held for ever.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  struct Known {
    PyTypeObject* type;
    const dlpack::ExchangeApi* api;
  };
  static std::array<Known, 8> known{};
  static size_t next = 0;
  for (const Known& entry : known)
    if (entry.type == type) return entry.api;

  const dlpack::ExchangeApi* api = nullptr;
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
    api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  PyErr_Clear();
  Py_XDECREF(capsule);  // the table is static data of the framework
  while (api && api->version.major > 1) api = api->previous;
  if (api && !api->tensor_from_object) api = nullptr;
  Py_INCREF(type);
  Known& slot = known[next++ % known.size()];
  Py_XDECREF(slot.type);
  slot = {type, api};
  return api;
}

/// What to hold: the object, or, for a registration of a torch tensor, the storage behind it, which stays
/// when the tensor is given another (`tensor.data = …`).
std::shared_ptr<void> hold_memory(const BufferArgument& argument) {
  if (argument.lifetime == Lifetime::registration && py::hasattr(argument.object, "untyped_storage"))
    return hold_object(argument.object.attr("untyped_storage")());
  return hold_object(argument.object);
}

std::optional<BufferView> from_exchange_api(const BufferArgument& argument) {
  const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(argument.object.ptr()));
  if (!api) return std::nullopt;
  dlpack::Tensor tensor{};
  if (api->tensor_from_object(argument.object.ptr(), &tensor) != 0)
    throw UsageError(argument.subject() + " has no plain memory: " + take_error_text());
  BufferView view = view_of(argument, tensor);
  view.keepalive = hold_memory(argument);
  if (view.on_gpu && api->current_stream) {
    void* stream = nullptr;
    if (api->current_stream(tensor.device.type, tensor.device.id, &stream) != 0)
      throw py::error_already_set();
    view.stream = reinterpret_cast<uint64_t>(stream);
  }
  return view;
}

/// A torch older than the exchange interface. Its __dlpack__ refuses tensors that require grad.
std::optional<BufferView> from_torch_methods(const BufferArgument& argument) {
  const py::handle object = argument.object;
  if (!py::hasattr(object, "data_ptr") || !py::hasattr(object, "untyped_storage")) return std::nullopt;
  const std::string device = py::str(object.attr("device").attr("type"));
  const bool on_gpu = device == "cuda";
  if (on_gpu && argument.place == Place::host) refuse_accelerator(argument, "cuda");
  if (device != "cpu" && !on_gpu)
    throw UsageError(argument.subject() + " has no plain memory: it is on device " + device);
  if (std::string(py::str(object.attr("layout"))) != "torch.strided")
    throw UsageError(argument.subject() + " has no plain memory: its layout is " +
                     std::string(py::str(object.attr("layout"))));
  if (method_is_true(object, "is_conj") || method_is_true(object, "is_neg"))
    throw UsageError(argument.subject() +
                     " is lazily conjugated or negated: pass .resolve_conj().resolve_neg()");
  BufferView view;
  view.on_gpu = on_gpu;
  view.data = reinterpret_cast<void*>(object.attr("data_ptr")().cast<uintptr_t>());
  if (object.attr("is_contiguous")().cast<bool>()) {
    view.bytes = object.attr("nbytes").cast<size_t>();
  } else if (on_gpu) {
    refuse_strided_on_gpu(argument);
  } else {
    const auto item_bytes = object.attr("element_size")().cast<uint64_t>();
    auto strides = object.attr("stride")().cast<std::vector<int64_t>>();
    for (int64_t& stride : strides) stride *= static_cast<int64_t>(item_bytes);
    set_layout(argument, view, item_bytes, object.attr("shape").cast<std::vector<int64_t>>(), strides);
  }
  view.keepalive = hold_memory(argument);
  return view;
}

std::optional<BufferView> from_dlpack(const BufferArgument& argument) {
  const py::handle object = argument.object;
  if (!py::hasattr(object, "__dlpack__")) return std::nullopt;
  py::dict arguments;
  if (py::hasattr(object, "__dlpack_device__")) {
    const auto device = object.attr("__dlpack_device__")().cast<std::pair<int32_t, int32_t>>();
    const bool on_gpu = is_on_gpu(device.first);
    if (!is_on_host(device.first) && !(on_gpu && argument.place == Place::anywhere))
      refuse_accelerator(argument, "DLPack device type " + std::to_string(device.first));
    if (on_gpu) arguments["stream"] = -1;  // the order is seen to when the transfer begins
  }
  py::object capsule;
  try {
    capsule = object.attr("__dlpack__")(**arguments, py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {  // a producer older than DLPack 1.0 knows no such argument
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = object.attr("__dlpack__")(**arguments);
  }
  BufferView view;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* tensor =
        static_cast<dlpack::VersionedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (tensor->version.major != 1)
      throw UsageError(argument.subject() + " speaks DLPack " + std::to_string(tensor->version.major) +
                       ", which this rdmatx does not know");
    view = view_of(argument, tensor->tensor);
    view.readonly = (tensor->flags & dlpack::flag_readonly) != 0;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    view =
        view_of(argument,
                static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor);
  } else {
    throw UsageError(argument.subject() + ": its __dlpack__() returned no DLPack capsule");
  }
  view.keepalive = hold_object(capsule);  // not consumed: its own destructor gives the memory back
  return view;
}

// ---- the buffer protocol, and __array_interface__
// ------------------------------------------------------------

/// Whether a format of the struct module holds Python objects ("O"), outside of the names of fields.
bool holds_objects(const char* format) {
  if (!format || !std::strchr(format, 'O')) return false;
  bool in_name = false;
  for (const char* letter = format; *letter; ++letter) {
    if (*letter == ':') in_name = !in_name;
    if (*letter == 'O' && !in_name) return true;
  }
  return false;
}

std::optional<BufferView> from_buffer_protocol(const BufferArgument& argument) {
  PyObject* object = argument.object.ptr();
  if (!PyObject_CheckBuffer(object)) return std::nullopt;
  Py_buffer exported;
  if (PyObject_GetBuffer(object, &exported, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    // numpy has no format for the types of other packages (bfloat16), yet exports their memory.
    PyErr_Clear();
    if (PyObject_GetBuffer(object, &exported, PyBUF_STRIDES) != 0) {
      const std::string reason = take_error_text();
      if (py::hasattr(argument.object, "__array_interface__")) return std::nullopt;
      throw UsageError(argument.subject() + " does not export its memory: " + reason);
    }
  }
  BufferView view;
  view.keepalive = hold_export(exported);
  if (holds_objects(exported.format))
    throw UsageError(argument.subject() + " holds Python objects, whose addresses mean nothing to a peer");
  view.data = exported.buf;
  view.bytes = static_cast<size_t>(exported.len);
  view.readonly = exported.readonly != 0;
  if (!PyBuffer_IsContiguous(&exported, 'C'))
    set_layout(argument, view, static_cast<uint64_t>(exported.itemsize),
               {exported.shape, exported.shape + exported.ndim},
               {exported.strides, exported.strides + exported.ndim});
  return view;
}

size_t item_bytes(const BufferArgument& argument, const std::string& type) {
  const bool known = type.size() >= 3 && type[1] != 'O' && type[1] != 't';
  const size_t count = known ? std::strtoul(type.c_str() + 2, nullptr, 10) : 0;
  if (!known || (count == 0 && type.substr(2) != "0"))
    throw UsageError(argument.subject() + " has elements of type \"" + type +
                     "\", which are not plain bytes");
  return type[1] == 'U' ? count * 4 : count;  // characters of four bytes
}

std::optional<BufferView> from_array_interface(const BufferArgument& argument) {
  if (!py::hasattr(argument.object, "__array_interface__")) return std::nullopt;
  const auto interface = argument.object.attr("__array_interface__").cast<py::dict>();
  if (!interface.contains("data") || interface["data"].is_none() ||
      !py::isinstance<py::tuple>(interface["data"]))
    throw UsageError(argument.subject() + ": its __array_interface__ names no address");
  const auto data = interface["data"].cast<std::pair<uintptr_t, bool>>();
  const size_t item = item_bytes(argument, py::str(interface["typestr"]));
  const auto shape = interface["shape"].cast<std::vector<int64_t>>();
  BufferView view;
  view.data = reinterpret_cast<void*>(data.first);
  view.readonly = data.second;
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    const auto strides = interface["strides"].cast<std::vector<int64_t>>();
    if (strides.size() != shape.size())
      throw UsageError(argument.subject() + ": its __array_interface__ has " + std::to_string(shape.size()) +
                       " dimensions and " + std::to_string(strides.size()) + " strides");
    set_layout(argument, view, item, shape, strides);
  } else {
    view.bytes = item;
    for (const int64_t extent : shape) view.bytes *= static_cast<size_t>(extent);
  }
  view.keepalive = hold_object(argument.object);
  return view;
}

/// The commonest and cheapest: no export to ask for.
std::optional<BufferView> from_known_types(const BufferArgument& argument) {
  PyObject* object = argument.object.ptr();
  BufferView view;
  if (PyBytes_CheckExact(object)) {
    view.data = PyBytes_AS_STRING(object);
    view.bytes = static_cast<size_t>(PyBytes_GET_SIZE(object));
    view.readonly = true;
    view.keepalive = hold_object(argument.object);
    return view;
  }
  if (std::shared_ptr<HostBuffer> buffer = as_host_buffer(argument.object)) {
    view.data = buffer->data();
    view.bytes = buffer->bytes();
    view.keepalive = std::move(buffer);
    return view;
  }
  return std::nullopt;
}

BufferView find_memory(const BufferArgument& argument) {
  if (auto view = from_known_types(argument)) return std::move(*view);
  if (auto view = from_exchange_api(argument)) return std::move(*view);
  if (auto view = from_buffer_protocol(argument)) return std::move(*view);
  if (auto view = from_torch_methods(argument)) return std::move(*view);
  if (py::hasattr(argument.object, "__cuda_array_interface__")) {
    if (argument.place == Place::host) refuse_accelerator(argument, "cuda");
    return view_of_cuda_array(argument.object, argument.subject());
  }
  if (auto view = from_dlpack(argument)) return std::move(*view);
  if (auto view = from_array_interface(argument)) return std::move(*view);
  throw UsageError(
      argument.subject() +
      " has no memory to move: pass bytes, bytearray, memoryview, mmap, a numpy array, a torch tensor, or "
      "anything with the buffer protocol, DLPack or __array_interface__");
}

}  // namespace

BufferView acquire_buffer(py::handle object, Wanted wanted, const char* what, Lifetime lifetime, Shape shape,
                          Place place) {
  release_pending_references();
  const BufferArgument argument{object, what, lifetime, shape, place};
  BufferView view = find_memory(argument);
  if (wanted == Wanted::write && view.readonly)
    throw UsageError(
        argument.subject() +
        " is read-only: it can be sent, but not received into. Pass writable memory, such as a bytearray, "
        "a writable array or rdmatx.empty()");
  return view;
}

}  // namespace rdmatx::bindings
