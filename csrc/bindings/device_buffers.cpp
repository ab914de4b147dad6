#include "bindings/device_buffers.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bindings/gil.hpp"
#include "bindings/references.hpp"
#include "gpu/memory.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

// As the protocol numbers them (https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html).
constexpr StreamHandle default_stream = 1;

bool has_value(const py::dict& interface, const char* name) {
  return interface.contains(name) && !interface[name].is_none();
}

/// Bytes of an element: "<f4" to 4.
uint64_t item_bytes_of(const std::string& type, const std::string& subject) {
  const uint64_t bytes = type.size() >= 3 ? std::strtoul(type.c_str() + 2, nullptr, 10) : 0;
  if (bytes == 0 || type[1] == 'O')
    throw UsageError(subject + " has elements of type \"" + type + "\", which are not plain bytes");
  return type[1] == 'U' ? 4 * bytes : bytes;
}

void check_dense(const py::dict& interface, const std::vector<int64_t>& shape, uint64_t item_bytes,
                 const std::string& subject) {
  if (!has_value(interface, "strides")) return;
  const auto strides = interface["strides"].cast<std::vector<int64_t>>();
  if (strides.size() != shape.size())
    throw UsageError(subject + ": its __cuda_array_interface__ has " + std::to_string(shape.size()) +
                     " dimensions and " + std::to_string(strides.size()) + " strides");
  auto expected = static_cast<int64_t>(item_bytes);
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return;
    if (shape[i] != 1 && strides[i] != expected)
      throw UsageError(subject +
                       " is not C-contiguous, and the memory of a GPU is moved as it lies: pass a contiguous "
                       "copy (torch: .contiguous(), CuPy: cupy.ascontiguousarray)");
    expected *= shape[i];
  }
}

void read_stream(const py::dict& interface, BufferView& view, const std::string& subject) {
  // Version 2 has no word for it: the default stream is meant.
  if (!interface.contains("stream")) {
    view.stream = default_stream;
  } else if (interface["stream"].is_none()) {
    view.unordered = true;
  } else {
    view.stream = interface["stream"].cast<uint64_t>();
    if (*view.stream == 0)
      throw UsageError(
          subject +
          ": its __cuda_array_interface__ names stream 0, which the protocol does not allow, since it "
          "may mean two streams: 1 is the legacy default stream, 2 the thread's");
  }
}

}  // namespace

BufferView view_of_cuda_array(py::handle object, const std::string& subject) {
  const auto interface = object.attr("__cuda_array_interface__").cast<py::dict>();
  for (const char* name : {"shape", "typestr", "data", "version"})
    if (!interface.contains(name))
      throw UsageError(subject + ": its __cuda_array_interface__ has no \"" + name + "\"");
  if (const int version = interface["version"].cast<int>(); version < 2)
    throw UsageError(subject + " speaks version " + std::to_string(version) +
                     " of __cuda_array_interface__, and this rdmatx versions 2 and 3");
  if (has_value(interface, "mask"))
    throw UsageError(subject + " is masked: a transfer moves all elements. Pass the array without its mask");
  const auto data = interface["data"].cast<std::pair<uintptr_t, bool>>();
  const auto shape = interface["shape"].cast<std::vector<int64_t>>();
  const uint64_t item_bytes = item_bytes_of(py::str(interface["typestr"]), subject);
  check_dense(interface, shape, item_bytes, subject);
  BufferView view;
  view.on_gpu = true;
  view.data = reinterpret_cast<void*>(data.first);
  view.readonly = data.second;
  view.bytes = item_bytes;
  for (const int64_t extent : shape) view.bytes *= static_cast<uint64_t>(extent);
  if (!view.data && view.bytes > 0)
    throw UsageError(subject + ": its __cuda_array_interface__ names no address");
  read_stream(interface, view, subject);
  view.keepalive = hold_object(object);
  return view;
}

StreamHandle stream_of(py::handle stream) {
  if (PyLong_Check(stream.ptr())) return stream.cast<uint64_t>();
  // torch; CuPy; and what Python's CUDA packages agreed on: (version, handle).
  if (py::hasattr(stream, "cuda_stream")) return stream.attr("cuda_stream").cast<uint64_t>();
  if (py::hasattr(stream, "ptr")) return stream.attr("ptr").cast<uint64_t>();
  if (py::hasattr(stream, "__cuda_stream__"))
    return stream.attr("__cuda_stream__")().cast<std::pair<int, uint64_t>>().second;
  throw UsageError(std::string("stream is a ") + Py_TYPE(stream.ptr())->tp_name +
                   ", and should be a stream of torch or CuPy, or the number of one");
}

StreamHandle current_stream(int gpu) {
  const auto loaded = [](const char* name) -> py::object {
    PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), name);  // borrowed
    return module ? py::reinterpret_borrow<py::object>(module) : py::none();
  };
  const py::object torch = loaded("torch.cuda");
  if (!torch.is_none() && torch.attr("is_initialized")().cast<bool>())
    return torch.attr("current_stream")(gpu).attr("cuda_stream").cast<uint64_t>();
  const py::object cupy = loaded("cupy.cuda");
  if (!cupy.is_none()) return cupy.attr("get_current_stream")().attr("ptr").cast<uint64_t>();
  return default_stream;
}

void refuse_stream(const char* what) {
  throw UsageError(std::string(what) +
                   " is memory of the host, and stream= is for memory of a GPU: wait for the stream first "
                   "(torch: stream.synchronize())");
}

OperationMemory memory_on_gpu(BufferView view, py::handle stream) {
  OperationMemory memory{view.data, view.bytes, std::move(view.keepalive)};
  if (view.bytes == 0) return memory;
  memory.device = without_gil([&] { return device_memory_at(view.data, view.bytes, std::nullopt); });
  if (!memory.device) {
    if (stream) refuse_stream("this buffer");
    return memory;
  }
  auto ordered = std::make_shared<DeviceMemory>(*memory.device);
  if (stream)
    ordered->stream = stream_of(stream);
  else if (!view.unordered)
    ordered->stream = view.stream ? *view.stream : current_stream(ordered->gpu);
  memory.device = std::move(ordered);
  return memory;
}

py::list gpu_choices_of(const Connection& connection) {
  py::list result;
  for (const GpuChoice& choice : connection.gpu_choices()) {
    py::dict entry;
    entry["device"] = choice.device;
    entry["gpu"] = choice.gpu;
    entry["way"] = gpu_way_name(choice.way);
    entry["reason"] = choice.reason;
    result.append(std::move(entry));
  }
  return result;
}

namespace {

py::dict cuda_array_interface(const DeviceBuffer& buffer) {
  py::dict interface;
  interface["version"] = 3;
  interface["shape"] = py::make_tuple(buffer.bytes());
  interface["typestr"] = "|u1";
  interface["data"] = py::make_tuple(buffer.address(), false);
  interface["strides"] = py::none();
  interface["stream"] = default_stream;
  return interface;
}

py::dict report_of_gpus() {
  const GpuReport report = without_gil([] { return gpu_report(); });
  py::dict result;
  result["available"] = report.available;
  result["reason"] = report.reason;
  result["driver"] = report.driver;
  py::list gpus;
  for (const GpuInfo& info : report.gpus) {
    py::dict entry;
    entry["number"] = info.number;
    entry["name"] = info.name;
    entry["pci_address"] = info.pci_address;
    entry["exports_dma_bufs"] = info.exports_dma_bufs;
    entry["needs_flush"] = info.needs_flush;
    gpus.append(std::move(entry));
  }
  result["gpus"] = std::move(gpus);
  return result;
}

}  // namespace

void bind_device_buffers(py::module_& module) {
  py::class_<DeviceBuffer, std::shared_ptr<DeviceBuffer>>(
      module, "DeviceBuffer", py::is_final(),
      "Zeroed memory of a GPU, made by `rdmatx.empty(nbytes, device=\"cuda:0\")`. Shows its bytes as uint8 "
      "by "
      "`__cuda_array_interface__` (`cupy.asarray(t)`, `torch.as_tensor(t, device=\"cuda\")`), without a "
      "copy; "
      "each view keeps the memory alive.")
      .def(py::init([](int gpu, size_t nbytes) {
             return without_gil([&] { return DeviceBuffer::create(gpu, nbytes); });
           }),
           py::arg("gpu"), py::arg("nbytes"))
      .def_property_readonly("nbytes", &DeviceBuffer::bytes, "Its size in bytes.")
      .def_property_readonly("address", &DeviceBuffer::address, "The address of its first byte.")
      .def_property_readonly("gpu", &DeviceBuffer::gpu, "The number of its GPU.")
      .def_property_readonly("__cuda_array_interface__", &cuda_array_interface)
      .def("__len__", &DeviceBuffer::bytes)
      .def("__repr__", [](const DeviceBuffer& buffer) {
        return "<rdmatx.DeviceBuffer of " + std::to_string(buffer.bytes()) + " bytes on GPU " +
               std::to_string(buffer.gpu()) + ">";
      });
  module.def("gpu_report", &report_of_gpus,
             "The GPUs that the CUDA driver shows, or the reason why there are none.");
}

}  // namespace rdmatx::bindings
