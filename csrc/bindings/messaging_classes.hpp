#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/gil.hpp"

namespace rdmatx::bindings {

/// close(), closed, and the context manager, of a class whose close() may wait.
template <typename T>
void bind_closing(pybind11::class_<T, std::shared_ptr<T>>& type, const char* doc) {
  type.def(
          "close", [](T& self) { without_gil([&] { self.close(); }); }, doc)
      .def_property_readonly("closed", &T::closed, "Whether close() was called.")
      .def("__enter__", [](pybind11::object self) { return self; })
      .def("__exit__", [](T& self, const pybind11::args&) { without_gil([&] { self.close(); }); });
}

}  // namespace rdmatx::bindings
