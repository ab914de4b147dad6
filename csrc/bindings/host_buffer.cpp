#include "bindings/host_buffer.hpp"

#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/buffers.hpp"
#include "bindings/device_buffers.hpp"
#include "bindings/dlpack.hpp"
#include "bindings/gil.hpp"
#include "bindings/references.hpp"
#include "messaging/device_operation.hpp"
#include "messaging/staging.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

PyTypeObject* host_buffer_type = nullptr;

/// What a DLPack capsule owns: the buffer and its only dimension. No Python object, so it needs no GIL to go.
struct ExportedBuffer {
  std::shared_ptr<HostBuffer> buffer;
  int64_t shape;
  int64_t stride = 1;
};

dlpack::Tensor describe(ExportedBuffer& exported) {
  dlpack::Tensor tensor{};
  tensor.data = exported.buffer->data();
  tensor.device = {dlpack::cpu, 0};
  tensor.dimensions = 1;
  tensor.type = {dlpack::code_uint, 8, 1};
  tensor.shape = &exported.shape;
  tensor.strides = &exported.stride;
  return tensor;
}

template <class Managed>
void delete_managed(Managed* managed) {
  delete static_cast<ExportedBuffer*>(managed->owner);
  delete managed;
}

/// A consumer renames the capsule and takes the tensor; one that nobody took is ours to delete.
template <class Managed>
py::object capsule_of(Managed* managed, const char* name, PyCapsule_Destructor destructor) {
  PyObject* capsule = PyCapsule_New(managed, name, destructor);
  if (!capsule) {
    managed->deleter(managed);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

constexpr const char* plain_name = "dltensor";
constexpr const char* versioned_name = "dltensor_versioned";

void destroy_plain(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, plain_name)) return;
  auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, plain_name));
  managed->deleter(managed);
}

void destroy_versioned(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, versioned_name)) return;
  auto* managed = static_cast<dlpack::VersionedTensor*>(PyCapsule_GetPointer(capsule, versioned_name));
  managed->deleter(managed);
}

using Pair = std::optional<std::pair<int, int>>;

py::object export_dlpack(const std::shared_ptr<HostBuffer>& buffer, const py::object& /*stream*/,
                         const Pair& max_version, const Pair& device, std::optional<bool> copy) {
  // The exceptions are those that the array API asks for.
  if (copy.value_or(false)) throw py::buffer_error("rdmatx.empty() memory is exported without a copy only");
  if (device && *device != std::pair(static_cast<int>(dlpack::cpu), 0))
    throw py::buffer_error("rdmatx.empty(device=\"cpu\") memory is on the host only");
  auto owner =
      std::make_unique<ExportedBuffer>(ExportedBuffer{buffer, static_cast<int64_t>(buffer->bytes())});
  const dlpack::Tensor tensor = describe(*owner);
  if (max_version && max_version->first >= 1) {
    auto* managed = new dlpack::VersionedTensor{
        {1, 0}, owner.release(), &delete_managed<dlpack::VersionedTensor>, 0, tensor};
    return capsule_of(managed, versioned_name, &destroy_versioned);
  }
  auto* managed = new dlpack::ManagedTensor{tensor, owner.release(), &delete_managed<dlpack::ManagedTensor>};
  return capsule_of(managed, plain_name, &destroy_plain);
}

py::dict array_interface(const HostBuffer& buffer) {
  py::dict interface;
  interface["version"] = 3;
  interface["shape"] = py::make_tuple(buffer.bytes());
  interface["typestr"] = "|u1";
  interface["data"] = py::make_tuple(reinterpret_cast<uintptr_t>(buffer.data()), false);
  return interface;
}

constexpr const char* class_text =
    "Zeroed, page-aligned host memory that same-host peers map: what they write into it takes one plain "
    "copy.\n\n"
    "Made by `rdmatx.empty()`. Exports its bytes as uint8 by the buffer protocol (`memoryview`, "
    "`numpy.asarray`), by\n"
    "DLPack (`torch.from_dlpack`) and by `__array_interface__`, without a copy; each export keeps the memory "
    "alive.";

}  // namespace

std::shared_ptr<HostBuffer> as_host_buffer(py::handle object) {
  if (Py_TYPE(object.ptr()) != host_buffer_type) return nullptr;
  return object.cast<std::shared_ptr<HostBuffer>>();
}

void bind_buffers(py::module_& module) {
  py::class_<HostBuffer, std::shared_ptr<HostBuffer>> type(module, "HostBuffer", py::buffer_protocol(),
                                                           py::is_final(), class_text);
  type.def(py::init([](size_t nbytes) { return without_gil([&] { return HostBuffer::create(nbytes); }); }),
           py::arg("nbytes"))
      .def_property_readonly("nbytes", &HostBuffer::bytes, "Its size in bytes.")
      .def_property_readonly(
          "address", [](const HostBuffer& buffer) { return reinterpret_cast<uintptr_t>(buffer.data()); },
          "The address of its first byte.")
      .def_property_readonly("__array_interface__", &array_interface)
      .def("__dlpack__", &export_dlpack, py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
           py::arg("copy") = py::none())
      .def("__dlpack_device__",
           [](const HostBuffer&) { return py::make_tuple(static_cast<int>(dlpack::cpu), 0); })
      .def("__len__", &HostBuffer::bytes)
      .def("__repr__",
           [](const HostBuffer& buffer) {
             return "<rdmatx.HostBuffer of " + std::to_string(buffer.bytes()) + " bytes>";
           })
      .def_buffer([](HostBuffer& buffer) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(buffer.data()),
                               static_cast<py::ssize_t>(buffer.bytes()));
      });
#if PY_VERSION_HEX < 0x030C0000
  // What newer Pythons add to every type with the buffer protocol (PEP 688).
  type.def(
      "__buffer__", [](const py::object& self, int) { return py::memoryview(self); }, py::arg("flags"),
      py::pos_only());
#endif
  host_buffer_type = reinterpret_cast<PyTypeObject*>(type.ptr());

  bind_device_buffers(module);
  module.def(
      "buffer_info",
      [](const py::object& buffer, bool writable) {
        const BufferView view = acquire_buffer(buffer, writable ? Wanted::write : Wanted::read);
        return py::make_tuple(reinterpret_cast<uintptr_t>(view.data), view.bytes, view.readonly);
      },
      py::arg("buffer"), py::arg("writable") = false,
      "(address, bytes, readonly) of an object's memory, or the error that registering it would raise.");
  module.def(
      "trim_pools",
      [] {
        without_gil([] {
          trim_host_buffers();
          trim_staging();
          // Making one lets go of what copies that have ended by now held.
          const DeviceOperation lets_go;
          trim_pinned();
        });
      },
      "Gives memory that is kept for later buffers back to the system.");
  module.def(
      "sent_bytes",
      [](const py::object& buffer) {
        const BufferView view =
            acquire_buffer(buffer, Wanted::read, "buffer", Lifetime::operation, Shape::strided);
        py::bytes bytes(nullptr, view.bytes);
        char* dense = PyBytes_AS_STRING(bytes.ptr());
        if (view.layout)
          view.layout->pack(reinterpret_cast<std::byte*>(dense));
        else if (view.bytes > 0)
          std::memcpy(dense, view.data, view.bytes);
        return bytes;
      },
      py::arg("buffer"), "The bytes that a transfer of an object would move, in their order.");
}

}  // namespace rdmatx::bindings
