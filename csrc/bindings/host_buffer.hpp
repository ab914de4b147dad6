#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "gpu/buffer.hpp"

namespace rdmatx::bindings {

/// The buffer behind an object that rdmatx.empty() returned, else null. Needs the GIL.
std::shared_ptr<HostBuffer> as_host_buffer(pybind11::handle object);

}  // namespace rdmatx::bindings
