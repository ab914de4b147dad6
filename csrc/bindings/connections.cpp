#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/device_buffers.hpp"
#include "bindings/gil.hpp"
#include "bindings/messages.hpp"
#include "bindings/messaging_arguments.hpp"
#include "bindings/messaging_classes.hpp"
#include "bindings/work.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

using Timeout = std::optional<double>;
using ConnectionPointer = std::shared_ptr<Connection>;
using ConnectionClass = py::class_<Connection, ConnectionPointer>;
using RequestPointer = std::shared_ptr<Request>;

py::dict stats_of(Connection& connection) {
  const ConnectionStats stats = connection.stats();
  py::dict result;
  result["messages_sent"] = stats.messages_sent;
  result["messages_received"] = stats.messages_received;
  result["bytes_sent"] = stats.bytes_sent;
  result["bytes_received"] = stats.bytes_received;
  result["bytes_written"] = stats.bytes_written;
  result["bytes_read"] = stats.bytes_read;
  result["atomics"] = stats.atomics;
  result["notifications_sent"] = stats.notifications_sent;
  result["notifications_received"] = stats.notifications_received;
  result["messages_refused"] = stats.messages_refused;
  result["unexpected_messages"] = stats.unexpected_messages;
  result["unexpected_bytes"] = stats.unexpected_bytes;
  result["waiting_notifications"] = stats.waiting_notifications;
  py::list rails;
  for (const RailStats& rail : connection.rail_stats()) {
    py::dict entry;
    entry["path"] = rail.path;
    entry["alive"] = rail.alive;
    entry["bytes"] = rail.bytes;
    entry["errors"] = rail.errors;
    entry["recoveries"] = rail.recoveries;
    rails.append(std::move(entry));
  }
  result["rails"] = std::move(rails);
  result["gpus"] = gpu_choices_of(connection);
  return result;
}

void bind_event_watch(py::module_& module) {
  py::class_<EventWatch>(module, "EventWatch",
                         "How an event loop waits for the connections of a context: see rdmatx.asynchronous.")
      .def("fileno", &EventWatch::fd, "Readable when something may have happened.")
      .def(
          "serve", [](EventWatch& self) { without_gil([&] { self.serve(); }); },
          "Makes progress without waiting, and asks for the next event.");
}

void bind_waiting_message(py::module_& module) {
  py::class_<WaitingMessage>(module, "WaitingMessage", "A message that waits to be received.")
      .def_readonly("tag", &WaitingMessage::tag, "Its tag.")
      .def_readonly("nbytes", &WaitingMessage::bytes, "Its size in bytes.")
      .def("__repr__", [](const WaitingMessage& self) {
        return "<WaitingMessage of " + std::to_string(self.bytes) + " bytes, tag " +
               std::to_string(self.tag) + ">";
      });
}

void bind_probes(ConnectionClass& type) {
  type.def(
          "probe",
          [](Connection& self, py::handle tag, Timeout timeout) {
            const TagChoice choice = tag_choice_of(tag);
            return without_gil([&] { return self.probe(choice, timeout); });
          },
          py::arg("tag") = py::none(), py::arg("timeout") = py::none(),
          "Waits for a message of this tag (None: of any tag) and tells its tag and size; it stays to be "
          "received.")
      .def(
          "iprobe",
          [](Connection& self, py::handle tag) {
            const TagChoice choice = tag_choice_of(tag);
            return without_gil([&] { return self.iprobe(choice); });
          },
          py::arg("tag") = py::none(), "The same, if there is one now; None where there is not.");
}

void bind_writes(ConnectionClass& type) {
  const auto start = [](Connection& self, py::handle src, py::handle key, py::handle offset,
                        py::handle notify, py::handle stream) {
    OperationMemory memory = memory_of(src, Wanted::read, "src", stream);
    const RemoteKey& there = key_argument(key);
    const uint64_t at = unsigned_of(offset, "offset");
    const auto immediate = notification_of(notify);
    return without_gil([&] { return self.write(std::move(memory), there, at, immediate); });
  };
  type.def(
          "write",
          [start](Connection& self, py::handle src, py::handle key, py::handle offset, py::handle notify,
                  Timeout timeout, py::handle stream) {
            const RequestPointer request = start(self, src, key, offset, notify, stream);
            without_gil([&] { self.wait(request, timeout); });
          },
          py::arg("src"), py::arg("key"), py::arg("offset") = 0, py::arg("notify") = py::none(),
          py::arg("timeout") = py::none(), py::arg("stream") = py::none(),
          "Writes a buffer or region into the peer's region, `offset` bytes from its start, and returns when "
          "the bytes are there; the peer takes no part. `notify`, 32 bits, is what the peer's "
          "next_notification() then returns. Raises UsageError where the key does not allow it or the bytes "
          "do not fit.")
      .def(
          "iwrite",
          [start](const ConnectionPointer& self, py::handle src, py::handle key, py::handle offset,
                  py::handle notify, py::handle stream) {
            return work_object({self, start(*self, src, key, offset, notify, stream)});
          },
          py::arg("src"), py::arg("key"), py::arg("offset") = 0, py::arg("notify") = py::none(),
          py::arg("stream") = py::none(),
          "Starts a write. Started writes may end in any order; wait for one, or flush(), before telling the "
          "peer of it, or have it told by `notify`.");
}

void bind_write_many(ConnectionClass& type) {
  const auto start = [](Connection& self, py::handle blocks, py::handle notify, py::handle stream) {
    std::vector<Connection::Block> list = blocks_of(blocks, stream);
    const auto immediate = notification_of(notify);
    return without_gil([&] { return self.write_many(std::move(list), immediate); });
  };
  type.def(
          "write_many",
          [start](Connection& self, py::handle blocks, py::handle notify, Timeout timeout,
                  py::handle stream) {
            const RequestPointer request = start(self, blocks, notify, stream);
            without_gil([&] { self.wait(request, timeout); });
          },
          py::arg("blocks"), py::arg("notify") = py::none(), py::arg("timeout") = py::none(),
          py::arg("stream") = py::none(),
          "Writes many blocks, [(src, key, offset), ...], in one operation: they are posted together and one "
          "completion tells that all are there, then `notify` is told. Raises as write() does, naming the "
          "block, and then nothing is written.")
      .def(
          "iwrite_many",
          [start](const ConnectionPointer& self, py::handle blocks, py::handle notify, py::handle stream) {
            return work_object({self, start(*self, blocks, notify, stream)});
          },
          py::arg("blocks"), py::arg("notify") = py::none(), py::arg("stream") = py::none(), "Starts it.");
}

void bind_reads(ConnectionClass& type) {
  const auto start = [](Connection& self, py::handle dst, py::handle key, py::handle offset,
                        py::handle stream) {
    OperationMemory memory = memory_of(dst, Wanted::write, "dst", stream);
    const RemoteKey& there = key_argument(key);
    const uint64_t at = unsigned_of(offset, "offset");
    return without_gil([&] { return self.read(std::move(memory), there, at); });
  };
  type.def(
          "read",
          [start](Connection& self, py::handle dst, py::handle key, py::handle offset, Timeout timeout,
                  py::handle stream) {
            const RequestPointer request = start(self, dst, key, offset, stream);
            without_gil([&] { self.wait(request, timeout); });
          },
          py::arg("dst"), py::arg("key"), py::arg("offset") = 0, py::arg("timeout") = py::none(),
          py::arg("stream") = py::none(),
          "Reads as many bytes as the buffer or region has from the peer's region, `offset` bytes from its "
          "start. Raises as write() does.")
      .def(
          "iread",
          [start](const ConnectionPointer& self, py::handle dst, py::handle key, py::handle offset,
                  py::handle stream) { return work_object({self, start(*self, dst, key, offset, stream)}); },
          py::arg("dst"), py::arg("key"), py::arg("offset") = 0, py::arg("stream") = py::none(),
          "Starts a read.");
}

void bind_fetch_add(ConnectionClass& type) {
  const auto start = [](Connection& self, py::handle key, py::handle offset, py::handle value) {
    const RemoteKey& there = key_argument(key);
    const uint64_t at = unsigned_of(offset, "offset");
    const uint64_t addend = unsigned_of(value, "value");
    return without_gil([&] { return self.fetch_add(there, at, addend); });
  };
  type.def(
          "fetch_add",
          [start](Connection& self, py::handle key, py::handle offset, py::handle value, Timeout timeout) {
            const RequestPointer request = start(self, key, offset, value);
            without_gil([&] { self.wait(request, timeout); });
            return request->value();
          },
          py::arg("key"), py::arg("offset"), py::arg("value"), py::arg("timeout") = py::none(),
          "Adds to the 8 bytes at `offset` of the peer's region, modulo 2**64, and returns what was there "
          "before. Atomic among all atomics of the peer's device; the region needs access \"a\", the address "
          "must be a multiple of 8.")
      .def(
          "ifetch_add",
          [start](const ConnectionPointer& self, py::handle key, py::handle offset, py::handle value) {
            return work_object({self, start(*self, key, offset, value)});
          },
          py::arg("key"), py::arg("offset"), py::arg("value"), "Starts it; Work.wait() returns the value.");
}

void bind_compare_swap(ConnectionClass& type) {
  const auto start = [](Connection& self, py::handle key, py::handle offset, py::handle expected,
                        py::handle desired) {
    const RemoteKey& there = key_argument(key);
    const uint64_t at = unsigned_of(offset, "offset");
    const uint64_t before = unsigned_of(expected, "expected");
    const uint64_t after = unsigned_of(desired, "desired");
    return without_gil([&] { return self.compare_swap(there, at, before, after); });
  };
  type.def(
          "compare_swap",
          [start](Connection& self, py::handle key, py::handle offset, py::handle expected,
                  py::handle desired, Timeout timeout) {
            const RequestPointer request = start(self, key, offset, expected, desired);
            without_gil([&] { self.wait(request, timeout); });
            return request->value();
          },
          py::arg("key"), py::arg("offset"), py::arg("expected"), py::arg("desired"),
          py::arg("timeout") = py::none(),
          "Stores `desired` in the 8 bytes at `offset` of the peer's region where they are `expected`, and "
          "returns what was there before: it was stored where that equals `expected`. As atomic as "
          "fetch_add().")
      .def(
          "icompare_swap",
          [start](const ConnectionPointer& self, py::handle key, py::handle offset, py::handle expected,
                  py::handle desired) {
            return work_object({self, start(*self, key, offset, expected, desired)});
          },
          py::arg("key"), py::arg("offset"), py::arg("expected"), py::arg("desired"),
          "Starts it; Work.wait() returns the value.");
}

void bind_rest(ConnectionClass& type) {
  type.def(
          "flush",
          [](Connection& self, Timeout timeout) { without_gil([&] { self.wait(self.flush(), timeout); }); },
          py::arg("timeout") = py::none(),
          "Waits until every write, read and atomic started before has ended: what was written is in the "
          "peer's memory. What failed is told by its own Work.")
      .def(
          "next_notification",
          [](Connection& self, Timeout timeout) {
            return without_gil([&] { return self.next_notification(timeout); });
          },
          py::arg("timeout") = py::none(),
          "The oldest `notify` of the peer's writes that was not taken yet; their bytes are here. While "
          "65,536 wait, the peer's further ones are held back.")
      .def("_take_notification",
           [](Connection& self) { return without_gil([&] { return self.take_notification(); }); })
      .def(
          "notifications", [](py::object self) { return asynchronous("notifications")(self); },
          "The peer's notifications as they come, for `async for` in an asyncio event loop. Ends when this "
          "side "
          "closes the connection, and raises what ends it otherwise.")
      .def("stats", &stats_of,
           "Messages and bytes since the connection was opened, what waits to be received, and for each of "
           "its \"rails\" the path, whether it is alive, the bytes of transfers over it, how often it failed "
           "(\"errors\") and came back (\"recoveries\").")
      .def_property_readonly("peer", &Connection::peer, "The peer's address: \"10.0.0.2:41234\".")
      .def_property_readonly(
          "path",
          [](const Connection& self) {
            std::string text;
            for (const Path& path : self.paths()) text += (text.empty() ? "" : "; ") + path.text();
            return text;
          },
          "Which way the bytes take: device, port and addresses, of every rail.");
}

}  // namespace

void bind_connections(py::module_& module) {
  bind_event_watch(module);
  bind_work(module);
  bind_waiting_message(module);
  ConnectionClass type(
      module, "Connection",
      "A connection to one peer. All calls may be made from any thread; timeouts are in seconds, none is the "
      "context's default, math.inf is no limit. After a failure every pending operation and every later call "
      "raises that failure; Context.connect() opens a new connection.");
  bind_waiting_in_loop(type);
  bind_messages(type);
  bind_probes(type);
  bind_writes(type);
  bind_write_many(type);
  bind_reads(type);
  bind_fetch_add(type);
  bind_compare_swap(type);
  bind_rest(type);
  bind_closing(
      type,
      "Delivers what was sent, tells the peer, and ends what is pending with ClosedError. Closing twice is "
      "allowed.");
}

}  // namespace rdmatx::bindings
