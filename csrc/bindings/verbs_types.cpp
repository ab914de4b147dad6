#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>

#include "bindings/bindings.hpp"
#include "bindings/buffers.hpp"
#include "rdma/completion_queue.hpp"
#include "rdma/queue_pair.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

void bind_enumerations(py::module_& module) {
  py::native_enum<Access>(module, "Access", "enum.IntFlag",
                          "What may be done to registered memory (ibv_reg_mr(3)); a set. REMOTE_WRITE and "
                          "REMOTE_ATOMIC need LOCAL_WRITE too.")
      .value("NONE", Access::none)
      .value("LOCAL_WRITE", Access::local_write)
      .value("REMOTE_WRITE", Access::remote_write)
      .value("REMOTE_READ", Access::remote_read)
      .value("REMOTE_ATOMIC", Access::remote_atomic)
      .value("RELAXED_ORDERING", Access::relaxed_ordering)
      .finalize();
  py::native_enum<QueuePairState>(module, "QueuePairState", "enum.IntEnum",
                                  "The state of a queue pair (ibv_modify_qp(3)).")
      .value("RESET", QueuePairState::reset)
      .value("INIT", QueuePairState::init)
      .value("READY_TO_RECEIVE", QueuePairState::ready_to_receive)
      .value("READY_TO_SEND", QueuePairState::ready_to_send)
      .value("SEND_QUEUE_DRAINED", QueuePairState::send_queue_drained)
      .value("SEND_QUEUE_ERROR", QueuePairState::send_queue_error)
      .value("ERROR", QueuePairState::error)
      .finalize();
  py::native_enum<PortState>(module, "PortState", "enum.IntEnum", "The state of a port (ibv_query_port(3)).")
      .value("NOP", PortState::nop)
      .value("DOWN", PortState::down)
      .value("INITIALIZING", PortState::initializing)
      .value("ARMED", PortState::armed)
      .value("ACTIVE", PortState::active)
      .value("ACTIVE_DEFER", PortState::active_defer)
      .finalize();
  py::native_enum<LinkLayer>(module, "LinkLayer", "enum.IntEnum", "What a port is connected to.")
      .value("UNSPECIFIED", LinkLayer::unspecified)
      .value("INFINIBAND", LinkLayer::infiniband)
      .value("ETHERNET", LinkLayer::ethernet)
      .finalize();
  py::native_enum<GidType>(module, "GidType", "enum.IntEnum", "What kind of packets a GID stands for.")
      .value("INFINIBAND", GidType::infiniband)
      .value("ROCE_V1", GidType::roce_v1)
      .value("ROCE_V2", GidType::roce_v2)
      .finalize();
}

void bind_work_enumerations(py::module_& module) {
  py::native_enum<SendOpcode>(module, "SendOpcode", "enum.IntEnum",
                              "What a SendWork asks for (ibv_post_send(3)).")
      .value("RDMA_WRITE", SendOpcode::rdma_write)
      .value("RDMA_WRITE_WITH_IMMEDIATE", SendOpcode::rdma_write_with_immediate)
      .value("SEND", SendOpcode::send)
      .value("SEND_WITH_IMMEDIATE", SendOpcode::send_with_immediate)
      .value("RDMA_READ", SendOpcode::rdma_read)
      .value("COMPARE_SWAP", SendOpcode::compare_swap)
      .value("FETCH_ADD", SendOpcode::fetch_add)
      .finalize();
  py::native_enum<CompletionOpcode>(module, "CompletionOpcode", "enum.IntEnum",
                                    "What kind of work completed (ibv_poll_cq(3)).")
      .value("SEND", CompletionOpcode::send)
      .value("RDMA_WRITE", CompletionOpcode::rdma_write)
      .value("RDMA_READ", CompletionOpcode::rdma_read)
      .value("COMPARE_SWAP", CompletionOpcode::compare_swap)
      .value("FETCH_ADD", CompletionOpcode::fetch_add)
      .value("RECEIVE", CompletionOpcode::receive)
      .value("RECEIVE_WRITE_WITH_IMMEDIATE", CompletionOpcode::receive_write_with_immediate)
      .finalize();
}

void bind_status(py::module_& module) {
  py::native_enum<WorkCompletionStatus>(module, "WorkCompletionStatus", "enum.IntEnum",
                                        "What became of a work request (ibv_poll_cq(3)).")
      .value("SUCCESS", WorkCompletionStatus::success)
      .value("LOCAL_LENGTH_ERROR", WorkCompletionStatus::local_length_error)
      .value("LOCAL_QP_OPERATION_ERROR", WorkCompletionStatus::local_qp_operation_error)
      .value("LOCAL_EEC_OPERATION_ERROR", WorkCompletionStatus::local_eec_operation_error)
      .value("LOCAL_PROTECTION_ERROR", WorkCompletionStatus::local_protection_error)
      .value("FLUSHED", WorkCompletionStatus::flushed)
      .value("MEMORY_WINDOW_BIND_ERROR", WorkCompletionStatus::memory_window_bind_error)
      .value("BAD_RESPONSE", WorkCompletionStatus::bad_response)
      .value("LOCAL_ACCESS_ERROR", WorkCompletionStatus::local_access_error)
      .value("REMOTE_INVALID_REQUEST", WorkCompletionStatus::remote_invalid_request)
      .value("REMOTE_ACCESS_ERROR", WorkCompletionStatus::remote_access_error)
      .value("REMOTE_OPERATION_ERROR", WorkCompletionStatus::remote_operation_error)
      .value("RETRY_EXCEEDED", WorkCompletionStatus::retry_exceeded)
      .value("RECEIVER_NOT_READY_RETRY_EXCEEDED", WorkCompletionStatus::receiver_not_ready_retry_exceeded)
      .value("LOCAL_RDD_VIOLATION", WorkCompletionStatus::local_rdd_violation)
      .value("REMOTE_INVALID_RD_REQUEST", WorkCompletionStatus::remote_invalid_rd_request)
      .value("REMOTE_ABORTED", WorkCompletionStatus::remote_aborted)
      .value("INVALID_EEC_NUMBER", WorkCompletionStatus::invalid_eec_number)
      .value("INVALID_EEC_STATE", WorkCompletionStatus::invalid_eec_state)
      .value("FATAL", WorkCompletionStatus::fatal)
      .value("RESPONSE_TIMEOUT", WorkCompletionStatus::response_timeout)
      .value("GENERAL_ERROR", WorkCompletionStatus::general_error)
      .finalize();
}

void bind_port_values(py::module_& module) {
  py::class_<PortAttributes>(module, "PortAttributes",
                             "A port as it was when asked (ibv_query_port(3)). MTUs in bytes.")
      .def_readonly("number", &PortAttributes::number)
      .def_readonly("state", &PortAttributes::state)
      .def_readonly("link_layer", &PortAttributes::link_layer)
      .def_readonly("active_mtu", &PortAttributes::active_mtu)
      .def_readonly("max_mtu", &PortAttributes::max_mtu)
      .def_readonly("lid", &PortAttributes::lid)
      .def_readonly("max_message_bytes", &PortAttributes::max_message_bytes)
      .def_readonly("gid_table_length", &PortAttributes::gid_table_length)
      .def_readonly("pkey_table_length", &PortAttributes::pkey_table_length)
      .def_readonly("gigabits_per_second", &PortAttributes::gigabits_per_second);
  py::class_<GidEntry>(module, "GidEntry", "One entry of a port's GID table (ibv_query_gid_ex(3)).")
      .def_readonly("index", &GidEntry::index)
      .def_property_readonly(
          "gid", [](const GidEntry& entry) { return entry.gid.text(); }, "As IPv6 text.")
      .def_readonly("type", &GidEntry::type)
      .def_readonly("network_device", &GidEntry::network_device,
                    "The interface behind it; empty where not told.")
      .def("__repr__", [](const GidEntry& entry) {
        return "<GidEntry " + std::to_string(entry.index) + ": " + entry.gid.text() + ", " +
               gid_type_name(entry.type) + ">";
      });
  py::class_<AsyncEvent>(module, "AsyncEvent",
                         "Something that happened outside any work request (ibv_get_async_event(3)). "
                         "queue_pair_number or port names what it is about; the other is 0.")
      .def_readonly("type", &AsyncEvent::type)
      .def_readonly("name", &AsyncEvent::name)
      .def_readonly("queue_pair_number", &AsyncEvent::queue_pair_number)
      .def_readonly("port", &AsyncEvent::port)
      .def("__repr__", [](const AsyncEvent& event) { return "<AsyncEvent " + event.name + ">"; });
  py::class_<DeviceLimits>(module, "DeviceLimits", "The limits a device reports (ibv_query_device(3)).")
      .def_readonly("max_mr_size", &DeviceLimits::max_mr_size)
      .def_readonly("max_qp", &DeviceLimits::max_qp)
      .def_readonly("max_qp_wr", &DeviceLimits::max_qp_wr)
      .def_readonly("max_sge", &DeviceLimits::max_sge)
      .def_readonly("max_sge_rd", &DeviceLimits::max_sge_rd)
      .def_readonly("max_cq", &DeviceLimits::max_cq)
      .def_readonly("max_cqe", &DeviceLimits::max_cqe)
      .def_readonly("max_mr", &DeviceLimits::max_mr)
      .def_readonly("max_pd", &DeviceLimits::max_pd)
      .def_readonly("max_qp_rd_atom", &DeviceLimits::max_qp_rd_atom)
      .def_readonly("max_qp_init_rd_atom", &DeviceLimits::max_qp_init_rd_atom)
      .def_readonly("max_srq", &DeviceLimits::max_srq)
      .def_readonly("max_srq_wr", &DeviceLimits::max_srq_wr)
      .def_readonly("max_srq_sge", &DeviceLimits::max_srq_sge)
      .def_readonly("max_pkeys", &DeviceLimits::max_pkeys)
      .def_readonly("atomics", &DeviceLimits::atomics);
}

py::bytes address_bytes(const Address& address) {
  const std::vector<std::byte> bytes = address.to_bytes();
  return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Address address_from(const py::object& data) {
  const BufferView view = acquire_buffer(data, Wanted::read, "data");
  return Address::from_bytes({static_cast<const std::byte*>(view.data), view.bytes});
}

Address make_address(uint32_t queue_pair_number, uint32_t packet_sequence_number, const std::string& gid,
                     uint8_t gid_index, GidType gid_type, uint16_t lid, uint8_t port, LinkLayer link_layer,
                     uint32_t mtu) {
  Address address{queue_pair_number, packet_sequence_number, lid, port, gid_index, link_layer, gid_type, mtu,
                  Gid::parse(gid)};
  address.to_bytes();  // throws where a field is out of range
  return address;
}

void bind_address(py::module_& module) {
  py::class_<Address>(
      module, "Address",
      "What a peer must know to connect to a queue pair. A value; bytes(address) is its versioned wire "
      "form of 40 bytes. Out-of-range fields raise UsageError. `mtu` in bytes, `gid` as IPv6 text.")
      .def(py::init(&make_address), py::kw_only(), py::arg("queue_pair_number"),
           py::arg("packet_sequence_number") = 0, py::arg("gid") = "::", py::arg("gid_index") = 0,
           py::arg("gid_type") = GidType::infiniband, py::arg("lid") = 0, py::arg("port") = 1,
           py::arg("link_layer") = LinkLayer::unspecified, py::arg("mtu") = 1024)
      .def_static("from_bytes", &address_from, py::arg("data"),
                  "The address behind bytes that to_bytes() made. Raises UsageError for anything else.")
      .def("to_bytes", &address_bytes, "Its wire form.")
      .def("__bytes__", &address_bytes)
      .def(
          "__eq__", [](const Address& self, const Address& other) { return self == other; },
          py::is_operator())
      .def("__hash__", [](const Address& self) { return py::hash(address_bytes(self)); })
      .def("__repr__", [](const Address& self) { return "<Address " + self.text() + ">"; })
      .def_readonly("queue_pair_number", &Address::queue_pair_number)
      .def_readonly("packet_sequence_number", &Address::packet_sequence_number)
      .def_property_readonly("gid", [](const Address& self) { return self.gid.text(); })
      .def_readonly("gid_index", &Address::gid_index)
      .def_readonly("gid_type", &Address::gid_type)
      .def_readonly("lid", &Address::lid)
      .def_readonly("port", &Address::port)
      .def_readonly("link_layer", &Address::link_layer)
      .def_readonly("mtu", &Address::mtu)
      .def(py::pickle([](const Address& self) { return address_bytes(self); },
                      [](const py::bytes& data) { return address_from(data); }));
}

void raise_for_status(const Completion& completion) {
  if (completion.succeeded()) return;
  const std::string advice = status_advice(completion.status());
  throw CompletionError("work " + std::to_string(completion.work_id()) + " of queue pair " +
                            std::to_string(completion.queue_pair_number()) +
                            " failed: " + status_name(completion.status()) + " (vendor error " +
                            std::to_string(completion.vendor_error()) + ")" +
                            (advice.empty() ? "" : "; " + advice),
                        static_cast<int>(completion.status()), completion.vendor_error(), "", "");
}

std::optional<uint32_t> immediate_of(const Completion& completion) {
  if (!completion.has_immediate()) return std::nullopt;
  return completion.immediate();
}

std::string completion_text(const Completion& completion) {
  std::string text =
      "<Completion work_id=" + std::to_string(completion.work_id()) + " " + status_name(completion.status());
  if (completion.succeeded()) text += std::string(" ") + completion_opcode_name(completion.opcode());
  return text + ">";
}

void bind_completion(py::module_& module) {
  py::class_<Completion>(
      module, "Completion",
      "The end of one work request (ibv_poll_cq(3)). After a failure only work_id, status, "
      "queue_pair_number and vendor_error mean anything.")
      .def_property_readonly("work_id", &Completion::work_id)
      .def_property_readonly("status", &Completion::status)
      .def_property_readonly("status_name", [](const Completion& self) { return status_name(self.status()); })
      .def_property_readonly("succeeded", &Completion::succeeded)
      .def_property_readonly("opcode", &Completion::opcode)
      .def_property_readonly("is_receive", &Completion::is_receive)
      .def_property_readonly("nbytes", &Completion::bytes,
                             "Bytes received, read or changed by an atomic; undefined for sends and writes.")
      .def_property_readonly("immediate", &immediate_of, "The sender's 32 bits, or None.")
      .def_property_readonly("queue_pair_number", &Completion::queue_pair_number)
      .def_property_readonly("vendor_error", &Completion::vendor_error)
      .def_property_readonly("flags", &Completion::flags)
      .def("raise_for_status", &raise_for_status,
           "Raises CompletionError, with the likely cause, unless it succeeded.")
      .def("__repr__", &completion_text);
}

PathAttributes make_path(const std::string& destination_gid, uint8_t source_gid_index,
                         uint16_t destination_lid, uint8_t port, bool is_global, uint8_t hop_limit,
                         uint8_t traffic_class, uint8_t service_level, uint32_t flow_label) {
  return {Gid::parse(destination_gid),
          source_gid_index,
          destination_lid,
          port,
          is_global,
          hop_limit,
          traffic_class,
          service_level,
          flow_label};
}

void bind_path(py::module_& module) {
  py::class_<PathAttributes>(module, "PathAttributes",
                             "The way to the peer's port (the `ah_attr` of ibv_modify_qp(3)).")
      .def(py::init(&make_path), py::kw_only(),
           py::arg("destination_gid") = "::", py::arg("source_gid_index") = 0, py::arg("destination_lid") = 0,
           py::arg("port") = 1, py::arg("is_global") = true, py::arg("hop_limit") = 64,
           py::arg("traffic_class") = 0, py::arg("service_level") = 0, py::arg("flow_label") = 0)
      .def_property_readonly("destination_gid",
                             [](const PathAttributes& self) { return self.destination_gid.text(); })
      .def_readonly("source_gid_index", &PathAttributes::source_gid_index)
      .def_readonly("destination_lid", &PathAttributes::destination_lid)
      .def_readonly("port", &PathAttributes::port)
      .def_readonly("is_global", &PathAttributes::is_global)
      .def_readonly("hop_limit", &PathAttributes::hop_limit)
      .def_readonly("traffic_class", &PathAttributes::traffic_class)
      .def_readonly("service_level", &PathAttributes::service_level)
      .def_readonly("flow_label", &PathAttributes::flow_label);
}

}  // namespace

void bind_verbs_types(py::module_& module) {
  bind_enumerations(module);
  bind_work_enumerations(module);
  bind_status(module);
  bind_port_values(module);
  bind_address(module);
  bind_completion(module);
  bind_path(module);
}

}  // namespace rdmatx::bindings
