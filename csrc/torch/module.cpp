// The extension rdmatx.torch._C: what makes a process group's backend of a group.

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "torch/backend.hpp"

namespace py = pybind11;

namespace rdmatx::distributed {
namespace {

using BackendPointer = c10::intrusive_ptr<c10d::Backend>;

// Made by rdmatx._C, which is built with a pybind11 of its own.
std::shared_ptr<Group> group_of(const py::capsule& capsule) {
  const auto* group =
      static_cast<const std::shared_ptr<Group>*>(PyCapsule_GetPointer(capsule.ptr(), "rdmatx.Group"));
  if (!group) throw py::error_already_set();
  return *group;
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

/// A function of Python for any thread to call and give up, held for as long as Python lives.
std::shared_ptr<py::function> held(py::function function) {
  return {new py::function(std::move(function)), [](py::function* pointer) {
            if (!Py_IsInitialized()) return;  // and then it is nobody's any more
            const py::gil_scoped_acquire gil;
            delete pointer;
          }};
}

Backend::Hooks hooks_of(py::function split, py::function closed) {
  return {[call = held(std::move(split))](const c10::intrusive_ptr<c10d::Store>& store, int rank, int world,
                                          std::chrono::milliseconds timeout) {
            const py::gil_scoped_acquire gil;
            return (*call)(store, rank, world, std::chrono::duration<double>(timeout).count())
                .cast<BackendPointer>();
          },
          [call = held(std::move(closed))] {
            if (!Py_IsInitialized()) return;
            const py::gil_scoped_acquire gil;
            (*call)();
          }};
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::class_<Backend, c10::intrusive_ptr<Backend>, c10d::Backend>(module, "Backend")
      .def(py::init([](const py::capsule& group, double timeout, py::function split, py::function closed) {
             return c10::make_intrusive<Backend>(group_of(group), milliseconds_of(timeout),
                                                 hooks_of(std::move(split), std::move(closed)));
           }),
           py::arg("group"), py::arg("timeout"), py::arg("split"), py::arg("closed"))
      .def_property_readonly("options", &Backend::getBackendOptions);
}

}  // namespace rdmatx::distributed
