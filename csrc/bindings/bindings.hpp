#pragma once

#include <pybind11/pybind11.h>

namespace rdmatx::bindings {

/// Translates the C++ errors to the classes of rdmatx/errors.py, with their attributes.
void bind_errors(pybind11::module_& module);
void bind_buffers(pybind11::module_& module);
void bind_devices(pybind11::module_& module);
void bind_verbs(pybind11::module_& module);
void bind_messaging(pybind11::module_& module);
void bind_testing(pybind11::module_& module);

}  // namespace rdmatx::bindings
