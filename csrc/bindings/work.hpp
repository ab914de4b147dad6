#pragma once

#include <pybind11/pybind11.h>

#include "messaging/connection.hpp"

namespace rdmatx::bindings {

/// Adds the class Work to the module. It is no class of pybind11's: one is made and dropped for each message.
void bind_work(pybind11::module_& module);

/// A new Work of Python's. Needs the GIL.
pybind11::object work_object(Work work);

}  // namespace rdmatx::bindings
