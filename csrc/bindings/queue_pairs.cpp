#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <optional>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "bindings/verbs_objects.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

// ---- work requests
// --------------------------------------------------------------------------------------------

/// The rest of the region from `offset`, where no size is given.
uint32_t element_bytes(const MemoryRegion& region, size_t offset, std::optional<size_t> nbytes) {
  const size_t bytes = nbytes.value_or(offset < region.bytes() ? region.bytes() - offset : 0);
  if (bytes > std::numeric_limits<uint32_t>::max())
    throw UsageError("one element of a work request holds less than 4 GiB, not " + std::to_string(bytes) +
                     " bytes: use several");
  return static_cast<uint32_t>(bytes);
}

template <class PyWork>
PyWork& add_region(PyWork& self, const PyMemoryRegion& region, size_t offset, std::optional<size_t> nbytes) {
  const std::shared_ptr<MemoryRegion>& shared = region.get();
  self.work.add(*shared, offset, element_bytes(*shared, offset, nbytes));
  self.held.push_back(shared);
  return self;
}

template <class PyWork>
PyWork& add_raw(PyWork& self, uintptr_t address, uint32_t nbytes, uint32_t local_key) {
  self.work.add(reinterpret_cast<void*>(address), nbytes, local_key);
  return self;
}

PySendWork& add_inline(PySendWork& self, const py::object& buffer) {
  BufferView view = acquire_buffer(buffer, Wanted::read);
  if (view.bytes > std::numeric_limits<uint32_t>::max())
    throw UsageError("inline work holds a few hundred bytes, not " + std::to_string(view.bytes));
  self.work.add(view.data, static_cast<uint32_t>(view.bytes), 0);
  self.work.inlined();
  self.held.push_back(std::move(view.keepalive));
  return self;
}

template <SendWork& (SendWork::*Setter)(bool)>
PySendWork& set_flag(PySendWork& self, bool on) {
  (self.work.*Setter)(on);
  return self;
}

constexpr const char* add_text =
    "Adds a part of a region: `nbytes` from `offset`, or all from there. Raises UsageError beyond its end.";
constexpr const char* add_raw_text =
    "Adds memory by address and local key, unchecked: the device judges it when the work is done.";

void bind_parts(py::class_<PySendWork>& type) {
  constexpr auto self_is = py::return_value_policy::reference_internal;
  type.def("add", &add_region<PySendWork>, py::arg("region"), py::arg("offset") = 0,
           py::arg("nbytes") = py::none(), self_is, add_text)
      .def("add_raw", &add_raw<PySendWork>, py::arg("address"), py::arg("nbytes"), py::arg("local_key"),
           self_is, add_raw_text)
      .def("add_inline", &add_inline, py::arg("buffer"), self_is,
           "Adds memory that is copied while posting and needs no registration; makes the work inline. At "
           "most the "
           "queue pair's max_inline_bytes in all.")
      .def("signaled", &set_flag<&SendWork::signaled>, py::arg("on") = true, self_is,
           "Asks for a completion; without it only a failure gives one.")
      .def("fenced", &set_flag<&SendWork::fenced>, py::arg("on") = true, self_is,
           "Waits for the reads and atomics posted before it.")
      .def("solicited", &set_flag<&SendWork::solicited>, py::arg("on") = true, self_is,
           "Wakes a receiver that armed for solicited completions only.")
      .def("inlined", &set_flag<&SendWork::inlined>, py::arg("on") = true, self_is,
           "Copies the payload while posting.")
      .def(
          "immediate",
          [](PySendWork& self, uint32_t value) -> PySendWork& {
            self.work.immediate(value);
            return self;
          },
          py::arg("value"), self_is,
          "32 bits for the receiver's completion; a write then consumes a receive. Raises UsageError for "
          "anything but a "
          "send or a write.")
      .def_property_readonly("work_id", [](const PySendWork& self) { return self.work.work_id(); })
      .def_property_readonly("opcode", [](const PySendWork& self) { return self.work.opcode(); })
      .def_property_readonly("nbytes", [](const PySendWork& self) { return self.work.total_bytes(); })
      .def("__repr__", [](const PySendWork& self) { return "<SendWork " + self.work.text() + ">"; });
}

void bind_send_work(py::module_& module) {
  py::class_<PySendWork> type(
      module, "SendWork",
      "A work request for a send queue (ibv_post_send(3)). Its methods return it, so that "
      "they chain; it may be posted\n"
      "any number of times. It holds the regions it names; they must stay registered "
      "until its completion is seen.");
  type.def_static(
          "send", [](uint64_t id) { return PySendWork{SendWork::send(id)}; }, py::kw_only(),
          py::arg("work_id") = 0, "A message for a receive that the peer posted.")
      .def_static(
          "write",
          [](uint64_t address, uint32_t key, uint64_t id) {
            return PySendWork{SendWork::write(address, key, id)};
          },
          py::arg("remote_address"), py::arg("remote_key"), py::kw_only(), py::arg("work_id") = 0,
          "Writes into the peer's memory.")
      .def_static(
          "read",
          [](uint64_t address, uint32_t key, uint64_t id) {
            return PySendWork{SendWork::read(address, key, id)};
          },
          py::arg("remote_address"), py::arg("remote_key"), py::kw_only(), py::arg("work_id") = 0,
          "Reads from the peer's memory.")
      .def_static(
          "fetch_add",
          [](uint64_t address, uint32_t key, uint64_t value, uint64_t id) {
            return PySendWork{SendWork::fetch_add(address, key, value, id)};
          },
          py::arg("remote_address"), py::arg("remote_key"), py::arg("value"), py::kw_only(),
          py::arg("work_id") = 0,
          "Adds to 8 aligned bytes of the peer; the value before goes to the 8 local bytes.")
      .def_static(
          "compare_swap",
          [](uint64_t address, uint32_t key, uint64_t expected, uint64_t desired, uint64_t id) {
            return PySendWork{SendWork::compare_swap(address, key, expected, desired, id)};
          },
          py::arg("remote_address"), py::arg("remote_key"), py::arg("expected"), py::arg("desired"),
          py::kw_only(), py::arg("work_id") = 0,
          "Stores `desired` where 8 aligned bytes of the peer equal `expected`; the value before goes to the "
          "8 "
          "local bytes.");
  bind_parts(type);
}

void bind_receive_work(py::module_& module) {
  constexpr auto self_is = py::return_value_policy::reference_internal;
  py::class_<PyReceiveWork>(
      module, "ReceiveWork",
      "A work request for a receive queue (ibv_post_recv(3)): where the next message goes. As with "
      "SendWork, methods chain and the regions must stay registered.")
      .def(py::init([](uint64_t id) { return PyReceiveWork{ReceiveWork(id)}; }), py::kw_only(),
           py::arg("work_id") = 0)
      .def("add", &add_region<PyReceiveWork>, py::arg("region"), py::arg("offset") = 0,
           py::arg("nbytes") = py::none(), self_is, add_text)
      .def("add_raw", &add_raw<PyReceiveWork>, py::arg("address"), py::arg("nbytes"), py::arg("local_key"),
           self_is, add_raw_text)
      .def_property_readonly("work_id", [](const PyReceiveWork& self) { return self.work.work_id(); })
      .def_property_readonly("nbytes", [](const PyReceiveWork& self) { return self.work.total_bytes(); });
}

// ---- queue pairs
// ----------------------------------------------------------------------------------------------

void bind_capabilities(py::module_& module) {
  py::class_<QueuePairCapabilities>(module, "QueuePairCapabilities",
                                    "How much a queue pair holds (ibv_create_qp(3)).")
      .def_readonly("max_send_requests", &QueuePairCapabilities::max_send_requests)
      .def_readonly("max_receive_requests", &QueuePairCapabilities::max_receive_requests)
      .def_readonly("max_send_elements", &QueuePairCapabilities::max_send_elements)
      .def_readonly("max_receive_elements", &QueuePairCapabilities::max_receive_elements)
      .def_readonly("max_inline_bytes", &QueuePairCapabilities::max_inline_bytes);
}

template <auto Member>
auto attribute() {
  return [](const QueuePairStatus& self) { return (self.attributes.*Member).value(); };
}

void bind_queue_pair_status(py::module_& module) {
  using A = QueuePairAttributes;
  py::class_<QueuePairStatus>(module, "QueuePairStatus",
                              "What ibv_query_qp(3) tells. Units and codes are those of QueuePair.modify().")
      .def_property_readonly("state", attribute<&A::state>())
      .def_property_readonly("access", attribute<&A::access>())
      .def_property_readonly("port", attribute<&A::port>())
      .def_property_readonly("pkey_index", attribute<&A::pkey_index>())
      .def_property_readonly("path", attribute<&A::path>())
      .def_property_readonly("path_mtu", attribute<&A::path_mtu>(), "Bytes; 0 before READY_TO_RECEIVE.")
      .def_property_readonly("destination_queue_pair_number", attribute<&A::destination_queue_pair_number>())
      .def_property_readonly("receive_packet_sequence_number",
                             attribute<&A::receive_packet_sequence_number>())
      .def_property_readonly("send_packet_sequence_number", attribute<&A::send_packet_sequence_number>())
      .def_property_readonly("max_rd_atomic", attribute<&A::max_rd_atomic>())
      .def_property_readonly("max_dest_rd_atomic", attribute<&A::max_dest_rd_atomic>())
      .def_property_readonly("min_rnr_timer", attribute<&A::min_rnr_timer>())
      .def_property_readonly("timeout", attribute<&A::timeout>())
      .def_property_readonly("retry_count", attribute<&A::retry_count>())
      .def_property_readonly("rnr_retry", attribute<&A::rnr_retry>())
      .def_readonly("capabilities", &QueuePairStatus::capabilities);
}

PyQueuePair create(const PyProtectionDomain& domain, const PyCompletionQueue& send_queue,
                   const PyCompletionQueue* receive_queue, uint32_t max_send_requests,
                   uint32_t max_receive_requests, uint32_t max_send_elements, uint32_t max_receive_elements,
                   uint32_t max_inline_bytes, bool signal_all,
                   const PySharedReceiveQueue* shared_receive_queue) {
  QueuePairOptions options;
  options.capabilities = {max_send_requests, max_receive_requests, max_send_elements, max_receive_elements,
                          max_inline_bytes};
  options.signal_all = signal_all;
  if (shared_receive_queue) options.shared_receive_queue = shared_receive_queue->get();
  const auto shared_domain = domain.get();
  const auto sends = send_queue.get();
  const auto receives = receive_queue ? receive_queue->get() : sends;
  const GilReleased released;
  return PyQueuePair(QueuePair::create(shared_domain, sends, receives, options));
}

/// Calls into a queue pair without the GIL.
template <class Call>
void run(const PyQueuePair& self, Call call) {
  const std::shared_ptr<QueuePair> queue_pair = self.get();
  const GilReleased released;
  call(*queue_pair);
}

constexpr const char* modify_text =
    "Passes exactly the attributes that are given (ibv_modify_qp(3) says which each transition needs).\n\n"
    "path_mtu in bytes. timeout: 4.096 µs × 2^timeout until a packet is sent again, 0 waits for ever. "
    "retry_count 0 to 7.\n"
    "rnr_retry 0 to 7, 7 retries for ever. min_rnr_timer: code 0 to 31 of the delay a sender is told where "
    "no receive is\n"
    "posted (12 is 0.64 ms). Raises VerbsError naming the transition and the attributes.";

void bind_modify(py::class_<PyQueuePair>& type) {
  type.def(
      "modify",
      [](const PyQueuePair& self, std::optional<QueuePairState> state,
         std::optional<QueuePairState> current_state, std::optional<Access> access,
         std::optional<uint16_t> pkey_index, std::optional<uint8_t> port, std::optional<PathAttributes> path,
         std::optional<uint32_t> path_mtu, std::optional<uint32_t> destination,
         std::optional<uint32_t> receive_number, std::optional<uint32_t> send_number,
         std::optional<uint8_t> max_rd_atomic, std::optional<uint8_t> max_dest_rd_atomic,
         std::optional<uint8_t> min_rnr_timer, std::optional<uint8_t> timeout,
         std::optional<uint8_t> retry_count, std::optional<uint8_t> rnr_retry) {
        const QueuePairAttributes attributes{state,          current_state, access,        pkey_index,
                                             port,           path,          path_mtu,      destination,
                                             receive_number, send_number,   max_rd_atomic, max_dest_rd_atomic,
                                             min_rnr_timer,  timeout,       retry_count,   rnr_retry};
        run(self, [&](QueuePair& queue_pair) { queue_pair.modify(attributes); });
      },
      py::kw_only(), py::arg("state") = py::none(), py::arg("current_state") = py::none(),
      py::arg("access") = py::none(), py::arg("pkey_index") = py::none(), py::arg("port") = py::none(),
      py::arg("path") = py::none(), py::arg("path_mtu") = py::none(),
      py::arg("destination_queue_pair_number") = py::none(),
      py::arg("receive_packet_sequence_number") = py::none(),
      py::arg("send_packet_sequence_number") = py::none(), py::arg("max_rd_atomic") = py::none(),
      py::arg("max_dest_rd_atomic") = py::none(), py::arg("min_rnr_timer") = py::none(),
      py::arg("timeout") = py::none(), py::arg("retry_count") = py::none(), py::arg("rnr_retry") = py::none(),
      modify_text);
}

void bind_transitions(py::class_<PyQueuePair>& type) {
  static const ConnectOptions standard;
  type.def(
          "to_reset", [](const PyQueuePair& self) { run(self, [](QueuePair& qp) { qp.to_reset(); }); },
          "Forgets everything that was posted.")
      .def(
          "to_error", [](const PyQueuePair& self) { run(self, [](QueuePair& qp) { qp.to_error(); }); },
          "Flushes all work: each request still posted completes as FLUSHED.")
      .def(
          "to_init",
          [](const PyQueuePair& self, int port, Access access) {
            run(self, [&](QueuePair& qp) { qp.to_init(port, access); });
          },
          py::kw_only(), py::arg("port") = 1, py::arg("access") = standard.access,
          "From now on receives may be posted.")
      .def(
          "to_ready_to_receive",
          [](const PyQueuePair& self, const Address& remote, int port, int gid_index, uint32_t path_mtu,
             uint8_t min_rnr_timer, uint8_t max_rd_atomic, uint8_t traffic_class, uint8_t service_level,
             uint8_t hop_limit) {
            const ConnectOptions options{.path_mtu = path_mtu,
                                         .min_rnr_timer = min_rnr_timer,
                                         .max_rd_atomic = max_rd_atomic,
                                         .traffic_class = traffic_class,
                                         .service_level = service_level,
                                         .hop_limit = hop_limit};
            run(self, [&](QueuePair& qp) { qp.to_ready_to_receive(port, gid_index, remote, options); });
          },
          py::arg("remote"), py::kw_only(), py::arg("port") = 1, py::arg("gid_index") = 0,
          py::arg("path_mtu") = 0, py::arg("min_rnr_timer") = standard.min_rnr_timer,
          py::arg("max_rd_atomic") = standard.max_rd_atomic, py::arg("traffic_class") = 0,
          py::arg("service_level") = 0, py::arg("hop_limit") = standard.hop_limit,
          "Learns of the peer. path_mtu 0 is the lesser of both ports' MTU.")
      .def(
          "to_ready_to_send",
          [](const PyQueuePair& self, uint8_t timeout, uint8_t retry_count, uint8_t rnr_retry,
             uint8_t max_rd_atomic) {
            const ConnectOptions options{.timeout = timeout,
                                         .retry_count = retry_count,
                                         .rnr_retry = rnr_retry,
                                         .max_rd_atomic = max_rd_atomic};
            run(self, [&](QueuePair& qp) { qp.to_ready_to_send(options); });
          },
          py::kw_only(), py::arg("timeout") = standard.timeout, py::arg("retry_count") = standard.retry_count,
          py::arg("rnr_retry") = standard.rnr_retry, py::arg("max_rd_atomic") = standard.max_rd_atomic,
          "From now on work may be sent.");
}

void bind_connect(py::class_<PyQueuePair>& type) {
  static const ConnectOptions standard;
  type.def(
      "connect",
      [](const PyQueuePair& self, const Address& remote, int port, int gid_index, Access access,
         uint32_t path_mtu, uint8_t timeout, uint8_t retry_count, uint8_t rnr_retry, uint8_t min_rnr_timer,
         uint8_t max_rd_atomic, uint8_t traffic_class, uint8_t service_level, uint8_t hop_limit) {
        const ConnectOptions options{access,        path_mtu,      timeout,       retry_count,   rnr_retry,
                                     min_rnr_timer, max_rd_atomic, traffic_class, service_level, hop_limit};
        run(self, [&](QueuePair& qp) { qp.connect(port, gid_index, remote, options); });
      },
      py::arg("remote"), py::kw_only(), py::arg("port") = 1, py::arg("gid_index") = 0,
      py::arg("access") = standard.access, py::arg("path_mtu") = 0, py::arg("timeout") = standard.timeout,
      py::arg("retry_count") = standard.retry_count, py::arg("rnr_retry") = standard.rnr_retry,
      py::arg("min_rnr_timer") = standard.min_rnr_timer, py::arg("max_rd_atomic") = standard.max_rd_atomic,
      py::arg("traffic_class") = 0, py::arg("service_level") = 0, py::arg("hop_limit") = standard.hop_limit,
      "From RESET or INIT to READY_TO_SEND. The peer does the same with our local_address(). Codes as in "
      "modify().");
}

void bind_queue_pair(py::module_& module) {
  py::class_<PyQueuePair> type(
      module, "QueuePair",
      "A reliable-connected queue pair (ibv_create_qp(3)).\n\n"
      "It may hold more than was asked for: `capabilities` tells. Both completion queues may be one. With a "
      "shared\n"
      "receive queue, receives are posted there. After a failed completion it is in state ERROR and flushes "
      "all work.\n"
      "May be used from any thread. Raises VerbsError with the device's limits where they are passed.");
  type.def(py::init(&create), py::arg("domain"), py::arg("send_queue"), py::arg("receive_queue") = nullptr,
           py::kw_only(), py::arg("max_send_requests") = 64, py::arg("max_receive_requests") = 64,
           py::arg("max_send_elements") = 1, py::arg("max_receive_elements") = 1,
           py::arg("max_inline_bytes") = 0, py::arg("signal_all") = false,
           py::arg("shared_receive_queue") = nullptr)
      .def_property_readonly(
          "number", [](const PyQueuePair& self) { return self.get()->number(); }, "24 bits.")
      .def_property_readonly("capabilities",
                             [](const PyQueuePair& self) { return self.get()->capabilities(); })
      .def_property_readonly(
          "state", [](const PyQueuePair& self) { return self.get()->state(); },
          "As the device sees it now (ibv_query_qp(3)).")
      .def(
          "local_address",
          [](const PyQueuePair& self, int port, int gid_index) {
            return self.get()->local_address(port, gid_index);
          },
          py::kw_only(), py::arg("port") = 1, py::arg("gid_index") = 0,
          "What the peer needs to connect to this one.")
      .def(
          "query", [](const PyQueuePair& self) { return self.get()->query(); },
          "All its attributes (ibv_query_qp(3)).")
      .def(
          "post_send",
          [](const PyQueuePair& self, const py::object& work) {
            auto requests = copy_work<PySendWork, SendWork>(work);
            run(self, [&](QueuePair& qp) { qp.post_send(requests); });
          },
          py::arg("work"),
          "Posts one SendWork or a sequence of them, in order (ibv_post_send(3)). Raises VerbsError that "
          "says which one "
          "was refused and why; those before it are posted.")
      .def(
          "post_receive",
          [](const PyQueuePair& self, const py::object& work) {
            auto requests = copy_work<PyReceiveWork, ReceiveWork>(work);
            run(self, [&](QueuePair& qp) { qp.post_receive(requests); });
          },
          py::arg("work"), "Posts one ReceiveWork or a sequence of them (ibv_post_recv(3)).")
      .def("__repr__", [](const PyQueuePair& self) {
        return self.closed() ? std::string("<QueuePair, closed>")
                             : "<QueuePair " + std::to_string(self.get()->number()) + ">";
      });
  bind_modify(type);
  bind_transitions(type);
  bind_connect(type);
  bind_closing(type);
}

}  // namespace

void bind_queue_pairs(py::module_& module) {
  bind_send_work(module);
  bind_receive_work(module);
  bind_capabilities(module);
  bind_queue_pair_status(module);
  bind_queue_pair(module);
}

}  // namespace rdmatx::bindings
