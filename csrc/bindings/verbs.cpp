#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <deque>
#include <thread>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "bindings/verbs_objects.hpp"
#include "bindings/waiting.hpp"
#include "rdma/provider.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

// ---- Device, ProtectionDomain, MemoryRegion
// -------------------------------------------------------------------

PyDevice open(const std::optional<std::string>& name, const std::string& provider) {
  const Provider parsed = parse_provider(provider);
  return PyDevice(without_gil([&] { return open_device(name.value_or(""), parsed); }));
}

AsyncEvent next_event(const PyDevice& self, std::optional<double> timeout) {
  const std::shared_ptr<Device> device = self.get();
  const Deadline deadline(timeout);
  auto event =
      wait_interruptibly(deadline, [&](double seconds) { return device->next_async_event(seconds); });
  if (!event)
    throw TimeoutError("device " + device->name() + " had no asynchronous event in " +
                           std::to_string(deadline.seconds()) + " s",
                       "", "next_async_event", deadline.seconds());
  return *event;
}

void bind_device(py::module_& module) {
  py::class_<PyDevice> type(
      module, "Device",
      "An open device (ibv_open_device(3)).\n\n"
      "Without a name it is the device a Context would choose: RDMATX_DEVICE and RDMATX_PROVIDER, else an "
      "ACTIVE\n"
      "port of the system, else the software HCA. `provider` is \"auto\", \"system\" or \"soft\". Raises\n"
      "UnavailableError with reason and remedy where there is no such device. May be used from any thread.");
  type.def(py::init(&open), py::arg("name") = py::none(), py::kw_only(), py::arg("provider") = "auto")
      .def_property_readonly("name", [](const PyDevice& self) { return self.get()->name(); })
      .def_property_readonly(
          "provider", [](const PyDevice& self) { return self.get()->attributes().provider; },
          "\"system\" or \"soft\".")
      .def_property_readonly("guid", [](const PyDevice& self) { return self.get()->attributes().guid; })
      .def_property_readonly(
          "limits", [](const PyDevice& self) { return self.get()->attributes().limits; },
          "What the device reports (ibv_query_device(3)).")
      .def_property_readonly("port_count",
                             [](const PyDevice& self) { return self.get()->attributes().port_count; })
      .def_property_readonly(
          "async_fd", [](const PyDevice& self) { return self.get()->async_fd(); },
          "Becomes readable when an asynchronous event waits.")
      .def(
          "query_port", [](const PyDevice& self, int port) { return self.get()->query_port(port); },
          py::arg("port") = 1, "The port's attributes, read anew. Ports count from 1.")
      .def(
          "query_gids", [](const PyDevice& self, int port) { return self.get()->query_gids(port); },
          py::arg("port") = 1, "The port's GID table without its holes.")
      .def(
          "query_gid",
          [](const PyDevice& self, int port, int index) { return self.get()->query_gid(port, index); },
          py::arg("port"), py::arg("index"), "One GID. Raises UsageError for an empty or missing index.")
      .def(
          "query_pkey",
          [](const PyDevice& self, int port, int index) { return self.get()->query_pkey(port, index); },
          py::arg("port"), py::arg("index"), "One partition key (ibv_query_pkey(3)).")
      .def("next_async_event", &next_event, py::kw_only(), py::arg("timeout") = py::none(),
           "The next asynchronous event, acknowledged (ibv_get_async_event(3)). `timeout` in seconds, None "
           "is no "
           "limit; raises TimeoutError.")
      .def("__repr__", [](const PyDevice& self) {
        return self.closed()
                   ? std::string("<Device, closed>")
                   : "<Device " + self.get()->name() + " of " + self.get()->attributes().provider + ">";
      });
  bind_closing(type);
}

void bind_memory(py::module_& module) {
  py::class_<PyProtectionDomain> domain(
      module, "ProtectionDomain",
      "A protection domain (ibv_alloc_pd(3)): queue pairs reach only memory registered "
      "in their own. Keeps its device open.");
  domain.def(py::init([](const PyDevice& device) {
               const auto shared = device.get();
               return PyProtectionDomain(without_gil([&] { return ProtectionDomain::create(shared); }));
             }),
             py::arg("device"));
  bind_closing(domain);

  py::class_<PyMemoryRegion> region(module, "MemoryRegion",
                                    "Registered memory (ibv_reg_mr(3)).\n\n"
                                    "`buffer` is anything with memory: bytes, bytearray, memoryview, mmap, "
                                    "numpy, torch, DLPack. It is held until\n"
                                    "close(). Read-only memory can be registered with access NONE or "
                                    "REMOTE_READ; anything else raises UsageError,\n"
                                    "as does memory that is not C-contiguous. Zero bytes register nothing "
                                    "and have keys 0. Raises VerbsError:\n"
                                    "ENOMEM names RLIMIT_MEMLOCK, its value and what is needed.");
  region
      .def(py::init(&register_buffer), py::arg("domain"), py::arg("buffer"), py::kw_only(),
           py::arg("access") = Access::local_write)
      .def_property_readonly(
          "address", [](const PyMemoryRegion& self) { return self.get()->remote_address(); },
          "What work requests name.")
      .def_property_readonly("nbytes", [](const PyMemoryRegion& self) { return self.get()->bytes(); })
      .def_property_readonly("access", [](const PyMemoryRegion& self) { return self.get()->access(); })
      .def_property_readonly("local_key", [](const PyMemoryRegion& self) { return self.get()->local_key(); })
      .def_property_readonly("remote_key",
                             [](const PyMemoryRegion& self) { return self.get()->remote_key(); })
      .def("__repr__", [](const PyMemoryRegion& self) {
        return self.closed() ? std::string("<MemoryRegion, closed>")
                             : "<MemoryRegion of " + std::to_string(self.get()->bytes()) + " bytes>";
      });
  bind_closing(region);
}

// ---- completions
// ----------------------------------------------------------------------------------------------

PyCompletionQueue get_event(const PyCompletionChannel& self, std::optional<double> timeout) {
  const std::shared_ptr<CompletionChannel> channel = self.get();
  const Deadline deadline(timeout);
  auto queue = wait_interruptibly(deadline, [&](double seconds) { return channel->get_event(seconds); });
  if (!queue)
    throw TimeoutError("no completion event in " + std::to_string(deadline.seconds()) +
                           " s: was a completion queue armed before the work completed?",
                       "", "get_event", deadline.seconds());
  return PyCompletionQueue(std::move(queue));
}

std::vector<Completion> poll(const PyCompletionQueue& self, size_t max_completions) {
  const std::shared_ptr<CompletionQueue> queue = self.get();
  std::vector<Completion> found(max_completions);
  found.resize(without_gil([&] { return queue->poll(found); }));
  return found;
}

/// Polls until there are `count`, spinning briefly and then sleeping ever longer. False after `seconds`.
bool poll_until(CompletionQueue& queue, size_t count, double seconds, std::vector<Completion>& found) {
  using namespace std::chrono_literals;
  const Deadline deadline(seconds);
  auto pause = 0us;
  for (int round = 0;; ++round) {
    const size_t before = found.size();
    found.resize(count);
    found.resize(before + queue.poll(std::span(found).subspan(before)));
    if (found.size() == count) return true;
    if (found.size() > before) {
      round = 0;
      pause = 0us;
    }
    if (round > 200) {
      pause = std::min(pause + 5us, std::chrono::microseconds(500));
      std::this_thread::sleep_for(pause);
    } else if (round > 100) {
      std::this_thread::yield();
    }
    if (deadline.passed()) return false;
  }
}

std::vector<Completion> wait(const PyCompletionQueue& self, size_t count, double timeout) {
  const std::shared_ptr<CompletionQueue> queue = self.get();
  const Deadline deadline(timeout);
  std::vector<Completion> found;
  const bool all =
      wait_interruptibly(deadline, [&](double seconds) { return poll_until(*queue, count, seconds, found); });
  if (all) return found;
  std::string text = std::to_string(found.size()) + " of " + std::to_string(count) + " completions came in " +
                     std::to_string(timeout) + " s";
  for (const Completion& completion : found)
    text += "; work " + std::to_string(completion.work_id()) + ": " + status_name(completion.status());
  throw TimeoutError(text, "", "wait", timeout);
}

void bind_channel(py::class_<PyCompletionChannel>& channel) {
  channel
      .def(py::init([](const PyDevice& device) {
             const auto shared = device.get();
             return PyCompletionChannel(without_gil([&] { return CompletionChannel::create(shared); }));
           }),
           py::arg("device"))
      .def(
          "fileno", [](const PyCompletionChannel& self) { return self.get()->fd(); },
          "For select, poll and asyncio.")
      .def("get_event", &get_event, py::kw_only(), py::arg("timeout") = py::none(),
           "The completion queue that got a completion; it equals the one that was armed. Arm it again, then "
           "poll it "
           "empty. `timeout` in seconds, None is no limit; raises TimeoutError (ibv_get_cq_event(3)).");
  bind_closing(channel);
}

void bind_queue(py::class_<PyCompletionQueue>& queue) {
  queue
      .def(py::init([](const PyDevice& device, int entries, const PyCompletionChannel* with_channel) {
             const auto shared = device.get();
             const auto shared_channel = with_channel ? with_channel->get() : nullptr;
             return PyCompletionQueue(
                 without_gil([&] { return CompletionQueue::create(shared, entries, shared_channel); }));
           }),
           py::arg("device"), py::arg("entries"), py::kw_only(), py::arg("channel") = nullptr)
      .def_property_readonly(
          "capacity", [](const PyCompletionQueue& self) { return self.get()->capacity(); },
          "How many completions it has room for; at least what was asked for.")
      .def("poll", &poll, py::arg("max_completions") = 16,
           "What has completed, in order; never waits (ibv_poll_cq(3)).")
      .def("wait", &wait, py::arg("count") = 1, py::kw_only(), py::arg("timeout") = 10.0,
           "Polls until `count` completions have come and returns exactly those. After `timeout` seconds "
           "raises "
           "TimeoutError, which names what came; those completions are gone.")
      .def(
          "arm", [](const PyCompletionQueue& self, bool solicited_only) { self.get()->arm(solicited_only); },
          py::kw_only(), py::arg("solicited_only") = false,
          "Asks for one event on the channel at the next completion, or at the next solicited or failed one "
          "(ibv_req_notify_cq(3)). Poll once more after arming.")
      .def(
          "resize",
          [](const PyCompletionQueue& self, int entries) {
            const auto shared = self.get();
            without_gil([&] { shared->resize(entries); });
          },
          py::arg("entries"), "Changes its room (ibv_resize_cq(3)).")
      .def(
          "__eq__",
          [](const PyCompletionQueue& self, const PyCompletionQueue& other) {
            return self.get() == other.get();
          },
          py::is_operator())
      .def("__hash__",
           [](const PyCompletionQueue& self) { return std::hash<const void*>()(self.get().get()); });
  bind_closing(queue);
}

void bind_completions(py::module_& module) {
  py::class_<PyCompletionChannel> channel(
      module, "CompletionChannel",
      "A descriptor that becomes readable when an armed completion queue gets a "
      "completion (ibv_create_comp_channel(3)). It is non-blocking.");
  py::class_<PyCompletionQueue> queue(
      module, "CompletionQueue",
      "A completion queue (ibv_create_cq(3)) with room for at least `entries` completions. One that overruns "
      "is dead:\n"
      "make it as deep as all work that can be outstanding on it. May be polled from any thread.");
  // Both are known before either is described: their signatures name each other.
  bind_channel(channel);
  bind_queue(queue);
}

void bind_shared_receive_queue(py::module_& module) {
  py::class_<PySharedReceiveQueue> type(
      module, "SharedReceiveQueue",
      "A receive queue of several queue pairs (ibv_create_srq(3)). Raises VerbsError "
      "with EOPNOTSUPP where the device has none.");
  type.def(py::init([](const PyProtectionDomain& domain, uint32_t max_requests, uint32_t max_elements) {
             const auto shared = domain.get();
             return PySharedReceiveQueue(
                 without_gil([&] { return SharedReceiveQueue::create(shared, max_requests, max_elements); }));
           }),
           py::arg("domain"), py::arg("max_requests"), py::kw_only(), py::arg("max_elements") = 1)
      .def_property_readonly("max_requests",
                             [](const PySharedReceiveQueue& self) { return self.get()->max_requests(); })
      .def_property_readonly("max_elements",
                             [](const PySharedReceiveQueue& self) { return self.get()->max_elements(); })
      .def(
          "post_receive",
          [](const PySharedReceiveQueue& self, const py::object& work) {
            auto requests = copy_work<PyReceiveWork, ReceiveWork>(work);
            const auto queue = self.get();
            without_gil([&] { queue->post_receive(requests); });
          },
          py::arg("work"), "Posts one ReceiveWork or a sequence of them (ibv_post_srq_recv(3)).")
      .def(
          "set_limit",
          [](const PySharedReceiveQueue& self, uint32_t requests) { self.get()->set_limit(requests); },
          py::arg("requests"), "Asks for one asynchronous event when fewer receives than this are left.")
      .def(
          "resize", [](const PySharedReceiveQueue& self, uint32_t requests) { self.get()->resize(requests); },
          py::arg("max_requests"), "Changes its room (ibv_modify_srq(3)).");
  bind_closing(type);
}

}  // namespace

PyMemoryRegion register_buffer(const PyProtectionDomain& domain, const py::object& buffer, Access access) {
  constexpr Access writes = Access::local_write | Access::remote_write | Access::remote_atomic;
  const bool written = (access & writes) != Access::none;
  BufferView view =
      acquire_buffer(buffer, written ? Wanted::write : Wanted::read, "buffer", Lifetime::registration);
  const auto shared = domain.get();
  return PyMemoryRegion(without_gil([&] {
    return MemoryRegion::create(shared, view.data, view.bytes, access, std::move(view.keepalive));
  }));
}

void bind_verbs(py::module_& module) {
  bind_device(module);
  bind_memory(module);
  bind_completions(module);
  bind_shared_receive_queue(module);
}

}  // namespace rdmatx::bindings
