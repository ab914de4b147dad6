#include <pybind11/pybind11.h>

#include "base/version.hpp"
#include "bindings/bindings.hpp"
#include "bindings/references.hpp"
#include "rdma/handle.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

py::dict count_live_objects() {
  release_pending_references();
  py::dict counts;
  for (int i = 0; i < static_cast<int>(ObjectKind::count); ++i) {
    const auto kind = static_cast<ObjectKind>(i);
    counts[object_kind_name(kind)] = live_objects(kind);
  }
  return counts;
}

void bind_all(py::module_& module) {
  module.doc() = "The native core of rdmatx. Use it through `rdmatx` and `rdmatx.verbs`.";
  bind_errors(module);
  bind_buffers(module);
  bind_devices(module);
  bind_verbs_types(module);
  bind_verbs(module);
  bind_queue_pairs(module);
  bind_messaging(module);
  bind_collectives(module);
  bind_testing(module);
  module.def("version", &version, "The version of the core.");
  module.def("live_objects", &count_live_objects,
             "How many verbs objects of each kind this process holds open. For tests: all are 0 when all is "
             "closed.");
  // Handlers run last registered first, so whatever uses references stops before they do.
  py::module_::import("atexit").attr("register")(py::cpp_function(&stop_releasing_references));
}

}  // namespace
}  // namespace rdmatx::bindings

PYBIND11_MODULE(_C, module) {
  rdmatx::bindings::bind_all(module);
}
