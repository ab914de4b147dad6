#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "bindings/verbs_objects.hpp"
#include "rdma/faults.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

PyDevice faulty_device(const std::string& provider, int failing_call,
                       const std::optional<std::vector<std::string>>& verb_names, const std::string& name) {
  const Verbs* verbs =
      faulty_verbs(parse_provider(provider), failing_call, verb_names.value_or(std::vector<std::string>{}));
  const GilReleased released;
  return PyDevice(Device::open(verbs, name));
}

}  // namespace

void bind_testing(py::module_& module) {
  py::module_ testing =
      module.def_submodule("testing", "Faults on purpose and raw copies, for tests and benchmarks.");
  testing.def("faulty_device", &faulty_device, py::arg("provider"), py::arg("failing_call"),
              py::arg("verb_names") = py::none(), py::arg("name") = "",
              "A Device whose table fails the n-th call (from 1, opening included; 0: none) of a verb that "
              "sets something "
              "up, with ENOMEM; of those named (\"create_qp\", …) or of all. One plan a provider at a time.");
  testing.def(
      "counted_calls", [](const std::string& provider) { return counted_calls(parse_provider(provider)); },
      py::arg("provider"), "How many counted calls the provider's current plan has seen.");
  bind_raw_copies(testing);
}

}  // namespace rdmatx::bindings
