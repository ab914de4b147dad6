#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "bindings/buffers.hpp"
#include "messaging/connection.hpp"

// Memory of GPUs in Python: arrays that show it, streams, and rdmatx.empty(device="cuda:0").

namespace rdmatx::bindings {

/// The memory behind __cuda_array_interface__, of version 2 or 3. Throws UsageError for an array with a mask,
/// with strides, or without what the protocol asks for.
BufferView view_of_cuda_array(pybind11::handle object, const std::string& subject);

/// The memory of a view on a GPU, in order with `stream` where that is given, else with the one that its
/// object knows, else with the one that work goes to now. Pinned memory that says it is a GPU's is the
/// host's. Throws UnavailableError where there is no driver, with the reason.
OperationMemory memory_on_gpu(BufferView view, pybind11::handle stream);

/// The handle of a stream: a number, torch.cuda.Stream, cupy.cuda.Stream, or anything with __cuda_stream__.
StreamHandle stream_of(pybind11::handle stream);
/// torch's current stream where torch works on GPUs, else CuPy's, else the default stream.
StreamHandle current_stream(int gpu);
[[noreturn]] void refuse_stream(const char* what);

/// For Connection.stats(): [{"device", "gpu", "way", "reason"}].
pybind11::list gpu_choices_of(const Connection& connection);

/// DeviceBuffer, and gpu_report().
void bind_device_buffers(pybind11::module_& module);

}  // namespace rdmatx::bindings
