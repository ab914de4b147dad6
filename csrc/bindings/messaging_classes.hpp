#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/gil.hpp"
#include "messaging/event_watch.hpp"

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

/// A function of the Python module that lets event loops wait; imported when first needed.
inline pybind11::object asynchronous(const char* name) {
  return pybind11::module_::import("rdmatx.asynchronous").attr(name);
}

/// Equal for what waits on the same context.
template <typename T>
uintptr_t progress_id(const T& subject) {
  return reinterpret_cast<uintptr_t>(subject.progress_of_context().get());
}

template <typename T>
std::unique_ptr<EventWatch> watch_events(const T& subject) {
  return std::make_unique<EventWatch>(subject.progress_of_context());
}

/// What rdmatx.asynchronous needs to wait for things of this class: which waits belong together, and a watch.
template <typename Class>
void bind_waiting_in_loop(Class& type) {
  using T = typename Class::type;
  type.def_property_readonly("_progress_id", [](const T& self) { return progress_id(self); })
      .def("_watch_events", [](const T& self) { return watch_events(self); });
}

}  // namespace rdmatx::bindings
