#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "rdma/provider.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

py::dict gid_dict(const GidEntry& entry) {
  using namespace py::literals;
  return py::dict("index"_a = entry.index, "gid"_a = entry.gid.text(), "type"_a = gid_type_name(entry.type),
                  "netdev"_a = entry.network_device);
}

py::dict port_dict(const PortInfo& port) {
  using namespace py::literals;
  const PortAttributes& found = port.attributes;
  py::list gids;
  for (const GidEntry& entry : port.gids) gids.append(gid_dict(entry));
  return py::dict("number"_a = found.number, "state"_a = port_state_name(found.state),
                  "link_layer"_a = link_layer_name(found.link_layer), "active_mtu"_a = found.active_mtu,
                  "max_mtu"_a = found.max_mtu, "lid"_a = found.lid, "max_msg_sz"_a = found.max_message_bytes,
                  "gigabits_per_second"_a = found.gigabits_per_second, "active_width"_a = found.active_width,
                  "active_speed"_a = found.active_speed, "gids"_a = gids);
}

py::dict limits_dict(const DeviceLimits& limits) {
  using namespace py::literals;
  return py::dict(
      "max_mr_size"_a = limits.max_mr_size, "max_qp"_a = limits.max_qp, "max_qp_wr"_a = limits.max_qp_wr,
      "max_sge"_a = limits.max_sge, "max_sge_rd"_a = limits.max_sge_rd, "max_cq"_a = limits.max_cq,
      "max_cqe"_a = limits.max_cqe, "max_mr"_a = limits.max_mr, "max_pd"_a = limits.max_pd,
      "max_qp_rd_atom"_a = limits.max_qp_rd_atom, "max_qp_init_rd_atom"_a = limits.max_qp_init_rd_atom,
      "max_srq"_a = limits.max_srq, "max_srq_wr"_a = limits.max_srq_wr, "max_srq_sge"_a = limits.max_srq_sge,
      "atomics"_a = limits.atomics);
}

py::dict device_dict(const DeviceInfo& info) {
  using namespace py::literals;
  const DeviceAttributes& found = info.attributes;
  py::list ports;
  for (const PortInfo& port : info.ports) ports.append(port_dict(port));
  return py::dict("name"_a = found.name, "provider"_a = found.provider, "guid"_a = found.guid,
                  "transport"_a = found.transport, "firmware"_a = found.firmware,
                  "vendor_id"_a = found.vendor_id, "vendor_part_id"_a = found.vendor_part_id,
                  "numa_node"_a = found.numa_node, "ports"_a = ports, "limits"_a = limits_dict(found.limits),
                  "problem"_a = info.problem);
}

py::list list_all(const std::string& provider) {
  const std::vector<DeviceInfo> found = [&] {
    const Provider parsed = parse_provider(provider);
    const GilReleased released;
    return list_devices(parsed);
  }();
  py::list all;
  for (const DeviceInfo& info : found) all.append(device_dict(info));
  return all;
}

py::tuple choose(const std::optional<std::string>& device, const std::string& provider) {
  const Choice choice = [&] {
    const Provider parsed = parse_provider(provider);
    const GilReleased released;
    return choose_device(device.value_or(""), parsed);
  }();
  return py::make_tuple(provider_name(choice.provider), choice.device, choice.port, choice.reason);
}

py::tuple report() {
  const SystemReport found = [] {
    const GilReleased released;
    return system_report();
  }();
  return py::make_tuple(system_state_name(found.state), found.reason, found.remedy);
}

}  // namespace

void bind_devices(py::module_& module) {
  module.def("list_devices", &list_all, py::arg("provider") = "auto",
             "The devices of a provider as dicts; `rdmatx.list_devices()` makes DeviceInfo of them.");
  module.def("choose_device", &choose, py::arg("device") = py::none(), py::arg("provider") = "auto",
             "(provider, device, port, reason) that a Context with these arguments would use.");
  module.def("system_report", &report,
             "(state, reason, remedy): whether the system has an RDMA device that serves, and why not.");
}

}  // namespace rdmatx::bindings
