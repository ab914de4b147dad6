#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/device_buffers.hpp"
#include "bindings/gil.hpp"
#include "bindings/messaging_arguments.hpp"
#include "bindings/messaging_classes.hpp"
#include "bindings/references.hpp"
#include "bindings/secret.hpp"
#include "messaging/context.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

using Timeout = std::optional<double>;

/// Answers Ctrl-C in a thread that waits without the GIL.
void check_signals() {
  // Python handles signals in its main thread alone; another one may be waiting while the interpreter ends,
  // when asking for the GIL would end it here.
  if (gettid() != getpid()) return;
  const py::gil_scoped_acquire acquired;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

py::dict listener_stats(const Listener& listener) {
  const ListenerStats stats = listener.stats();
  py::dict result;
  result["accepted"] = stats.accepted;
  result["refused"] = stats.refused;
  result["failed_authentication"] = stats.failed_authentication;
  result["timed_out"] = stats.timed_out;
  result["shut_out"] = stats.shut_out;
  result["gave_up"] = stats.gave_up;
  result["half_open"] = stats.half_open;
  result["waiting"] = stats.waiting;
  return result;
}

void bind_listener(py::module_& module) {
  py::class_<Listener, std::shared_ptr<Listener>> type(
      module, "Listener", "Takes connections at an address; the handshakes are done in the background.");
  type.def(
          "accept",
          [](Listener& self, Timeout timeout) {
            return freed_without_gil(without_gil([&] { return self.accept(timeout); }));
          },
          py::arg("timeout") = py::none(),
          "The next connection. Raises TimeoutError where nobody connects within `timeout` seconds (none: "
          "the "
          "context's default).")
      .def(
          "stats", &listener_stats,
          "What became of those who knocked: `accepted`, `refused` (no handshake of ours, or no way to "
          "connect), `failed_authentication`, `timed_out`, `shut_out` (quiet while others waited), `gave_up` "
          "(closed before they had finished); and as of now `half_open` handshakes, and connections "
          "`waiting` "
          "for accept().")
      .def_property_readonly("address", &Listener::address, "What peers connect to: \"127.0.0.1:41234\".")
      .def("_try_accept",
           [](Listener& self) { return freed_without_gil(without_gil([&] { return self.try_accept(); })); });
  bind_waiting_in_loop(type);
  type.def(
      "accept_async", [](py::object self) { return asynchronous("accept")(self); },
      "The next connection, awaitable in an asyncio event loop.");
  bind_closing(type, "Stops listening and closes the connections that nobody accepted.");
}

void bind_region(py::module_& module) {
  py::class_<RegionPart>(module, "RegionPart", "Some bytes of a region: region[start:stop].")
      .def_property_readonly(
          "nbytes", [](const RegionPart& self) { return self.bytes; }, "Its size in bytes.");
  py::class_<Region, std::shared_ptr<Region>> type(module, "Region",
                                                   "Registered memory. Peers reach it by its key; operations "
                                                   "of this side use it without registering anything. "
                                                   "region[start:stop] is a part of it, in bytes.");
  bind_closing(
      type, "Takes the memory from the peers; operations of this side that use it keep it until they end.");
  type.def("key", &Region::key, "What a peer needs to reach the region.")
      .def_property_readonly("nbytes", &Region::bytes, "Its size in bytes.")
      .def_property_readonly(
          "access", [](const Region& self) { return access_letters(self.access()); },
          "What peers may do: \"r\", \"w\", \"a\" or several.")
      .def("__len__", &Region::bytes)
      .def("__getitem__", &part_of);
}

py::bytes bytes_of(const RemoteKey& key) {
  const auto bytes = key.to_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

RemoteKey key_of(const py::bytes& data) {
  return RemoteKey::from_bytes(std::as_bytes(std::span(static_cast<std::string_view>(data))));
}

void bind_remote_key(py::module_& module) {
  py::class_<RemoteKey>(
      module, "RemoteKey",
      "What a peer needs to reach a region. bytes(key) goes over any channel; from_bytes() takes it.")
      .def_static("from_bytes", &key_of, py::arg("data"),
                  "Raises UsageError for bytes that are no key, or of another version.")
      .def("__bytes__", &bytes_of)
      .def(py::pickle([](const RemoteKey& self) { return bytes_of(self); }, &key_of))
      .def("__eq__",
           [](const RemoteKey& self, py::handle other) {
             return py::isinstance<RemoteKey>(other) && self == other.cast<const RemoteKey&>();
           })
      .def("__hash__", [](const RemoteKey& self) { return py::hash(bytes_of(self)); })
      .def("__repr__",
           [](const RemoteKey& self) {
             return "<RemoteKey of " + std::to_string(self.length) + " bytes, access \"" +
                    access_letters(self.access) + "\">";
           })
      .def_readonly("address", &RemoteKey::address, "Where the region lies in the peer's memory.")
      .def_readonly("nbytes", &RemoteKey::length, "The region's size in bytes.")
      .def_property_readonly(
          "access", [](const RemoteKey& self) { return access_letters(self.access); },
          "What it allows: \"r\", \"w\", \"a\" or several.");
}

py::dict context_stats(const Context& context) {
  const RegistrationStats stats = context.registration_stats();
  py::dict result;
  result["registration_hits"] = stats.hits;
  result["registration_misses"] = stats.misses;
  result["registration_uncached"] = stats.uncached;
  result["registration_evictions"] = stats.evictions;
  result["registrations_kept"] = stats.entries;
  result["pinned_bytes"] = stats.pinned_bytes;
  result["pin_limit_bytes"] = stats.limit_bytes;
  return result;
}

void bind_context(py::module_& module) {
  py::class_<Context, std::shared_ptr<Context>> type(module, "Context");
  type.def(py::init([](const std::vector<std::string>& devices, const std::string& provider, double timeout,
                       bool verify, const std::string& gpu_direct) {
             const Provider chosen = parse_provider(provider);
             const GpuDirect direct = parse_gpu_direct(gpu_direct);
             return freed_without_gil(without_gil(
                 [&] { return std::make_shared<Context>(devices, chosen, timeout, verify, direct); }));
           }),
           py::arg("devices"), py::arg("provider"), py::arg("timeout"), py::arg("verify"),
           py::arg("gpu_direct") = "auto")
      .def(
          "listen",
          [](Context& self, const std::string& address, const PreparedSecret& secret) {
            return freed_without_gil(without_gil([&] { return self.listen(address, secret.secret); }));
          },
          py::arg("address"), py::arg("secret"))
      .def(
          "connect",
          [](Context& self, const std::string& address, Timeout timeout, const PreparedSecret& secret) {
            return freed_without_gil(
                without_gil([&] { return self.connect(address, timeout, secret.secret); }));
          },
          py::arg("address"), py::kw_only(), py::arg("timeout"), py::arg("secret"))
      .def(
          "register",
          [](Context& self, py::handle buffer, const std::string& access) {
            const uint16_t wanted = parse_access(access);
            BufferView view = acquire_buffer(buffer, Wanted::read, "buffer", Lifetime::registration,
                                             Shape::dense, Place::anywhere);
            const bool readonly = view.readonly;
            OperationMemory memory =
                view.on_gpu ? memory_on_gpu(std::move(view), {})
                            : OperationMemory{view.data, view.bytes, std::move(view.keepalive), {}};
            return without_gil([&] { return self.register_memory(std::move(memory), readonly, wanted); });
          },
          py::arg("buffer"), py::arg("access"))
      .def("describe", &Context::describe)
      .def("stats", &context_stats)
      .def_property_readonly("device", [](const Context& self) { return self.device_name(); })
      .def_property_readonly("provider", [](const Context& self) { return self.provider(); })
      .def_property_readonly("timeout", &Context::default_timeout);
  bind_closing(type, "Closes what was made from it.");
}

}  // namespace

void bind_messaging(py::module_& module) {
  set_interrupt_check(&check_signals);
  bind_remote_key(module);
  bind_region(module);
  bind_connections(module);
  bind_secret(module);
  bind_listener(module);
  bind_context(module);
}

}  // namespace rdmatx::bindings
