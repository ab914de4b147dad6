#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "bindings/messaging_arguments.hpp"
#include "bindings/messaging_classes.hpp"
#include "bindings/secret.hpp"
#include "collectives/group.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

constexpr const char* group_capsule_name = "rdmatx.Group";
using Timeout = std::optional<double>;
using GroupPointer = std::shared_ptr<Group>;
/// Collective, world, largest number of bytes, algorithm, bytes of a chunk.
using TuningLine = std::tuple<std::string, int, uint64_t, std::string, uint64_t>;

/// The memory of a buffer of a collective: dense, since elements are reduced where they lie. None is nothing.
OperationMemory dense_memory_of(py::handle object, Wanted wanted, const char* what) {
  if (object.is_none()) return {};
  OperationMemory memory = memory_of(object, wanted, what);
  if (memory.layout)
    throw UsageError(
        std::string(what) +
        " does not lie in one piece: collectives take contiguous memory (pass a contiguous copy)");
  return memory;
}

/// What a call is made of, by name; group.py knows which belong to which collective.
Call call_of(const std::string& collective, const py::kwargs& details) {
  Call call;
  call.collective = parse_collective(collective);
  for (const auto& [key, value] : details) {
    const auto name = key.cast<std::string>();
    if (name == "dtype")
      call.type = parse_data_type(value.cast<std::string>());
    else if (name == "op")
      call.operation = parse_reduce_operation(value.cast<std::string>());
    else if (name == "factor")
      call.factor = value.cast<double>();
    else if (name == "root")
      call.root = value.cast<int>();
    else if (name == "count")
      call.count = unsigned_of(value, "count");
    else if (name == "counts")
      call.counts = value.cast<std::vector<uint64_t>>();
    else if (name == "receive_counts")
      call.receive_counts = value.cast<std::vector<uint64_t>>();
    else if (name == "algorithm")
      call.algorithm = parse_algorithm(value.cast<std::string>());
    else if (name == "chunk_bytes")
      call.chunk_bytes = unsigned_of(value, "chunk_bytes");
    else
      throw UsageError("a collective has no \"" + name + "\"");
  }
  return call;
}

GroupPointer create_group(const std::shared_ptr<Context>& context, const std::shared_ptr<Listener>& listener,
                          int rank, std::vector<std::string> addresses, double timeout,
                          const PreparedSecret& secret, const std::vector<TuningLine>& tuning) {
  GroupSettings settings{rank, std::move(addresses), timeout, secret.secret, {}};
  for (const auto& [collective, world, max_bytes, algorithm, chunk_bytes] : tuning)
    settings.tuning.push_back(
        {parse_collective(collective), world, max_bytes, parse_algorithm(algorithm), chunk_bytes});
  return freed_without_gil(
      without_gil([&] { return Group::create(context, listener, std::move(settings)); }));
}

/// What a collective and a message have in common.
template <typename Work>
void bind_group_work(py::class_<Work>& type) {
  bind_waiting_in_loop(type);
  type.def("__await__", [](py::object self) { return asynchronous("finished")(self).attr("__await__")(); })
      .def_property_readonly("_finished", &Work::finished)
      .def(
          "wait", [](const Work& self, Timeout timeout) { without_gil([&] { self.wait(timeout); }); },
          py::arg("timeout") = py::none(),
          "Waits for the end. Raises what made it fail, and TimeoutError where it is not done within "
          "`timeout` "
          "seconds; then it goes on and can be waited for again. Without one it waits for the end, which the "
          "timeout of the collective bounds.")
      .def(
          "done", [](const Work& self) { return without_gil([&] { return self.done(); }); },
          "Whether it has ended, well or not. Looks once and never waits.");
}

void bind_works(py::module_& module) {
  py::class_<CollectiveWork> collective(
      module, "CollectiveWork",
      "A collective that was started. It ends in exactly one state, and holds its "
      "buffers till then. `await work` waits for it in an asyncio event loop.");
  bind_group_work(collective);
  py::class_<MessageWork> message(
      module, "MessageWork",
      "A message of a group that was started. It ends in exactly one state, and "
      "holds its buffer till then. `await work` waits for it in an asyncio event loop.");
  bind_group_work(message);
  message
      .def_property_readonly(
          "peer", &MessageWork::peer,
          "The other rank; of a receive from any rank, who sent it. Raises UsageError while it "
          "is pending, or what made it fail.")
      .def_property_readonly(
          "nbytes", &MessageWork::bytes,
          "Bytes moved; of a receive, what came. Raises UsageError while it is pending, or what "
          "made it fail.");
}

struct CollectiveArguments {
  Call call;
  OperationMemory input;
  OperationMemory output;
};

CollectiveArguments arguments_of(const std::string& collective, const py::kwargs& details, py::handle input,
                                 py::handle output) {
  return {call_of(collective, details), dense_memory_of(input, Wanted::read, "the input"),
          dense_memory_of(output, Wanted::write, "the output")};
}

void bind_calls(py::class_<Group, GroupPointer>& type) {
  type.def(
          "_run",
          [](Group& self, const std::string& collective, py::handle input, py::handle output, Timeout timeout,
             const py::kwargs& details) {
            auto [call, in, out] = arguments_of(collective, details, input, output);
            without_gil([&] { self.run(std::move(call), std::move(in), std::move(out), timeout); });
          },
          py::arg("collective"), py::arg("input"), py::arg("output"), py::arg("timeout"))
      .def(
          "_start",
          [](Group& self, const std::string& collective, py::handle input, py::handle output, Timeout timeout,
             const py::kwargs& details) {
            auto [call, in, out] = arguments_of(collective, details, input, output);
            return without_gil(
                [&] { return self.start(std::move(call), std::move(in), std::move(out), {timeout, true}); });
          },
          py::arg("collective"), py::arg("input"), py::arg("output"), py::arg("timeout"));
}

void bind_messages(py::class_<Group, GroupPointer>& type) {
  type.def(
          "_send",
          [](Group& self, py::handle tensor, int to, uint64_t tag, Timeout timeout, bool in_background) {
            OperationMemory memory = memory_of(tensor, Wanted::read, "the message");
            return without_gil(
                [&] { return self.send(std::move(memory), to, tag, {timeout, in_background}); });
          },
          py::arg("tensor"), py::arg("to"), py::arg("tag"), py::arg("timeout"), py::arg("in_background"))
      .def(
          "_receive",
          [](Group& self, py::handle tensor, std::optional<int> from, uint64_t tag, Timeout timeout,
             bool in_background) {
            OperationMemory memory = memory_of(tensor, Wanted::write, "the message");
            return without_gil(
                [&] { return self.receive(std::move(memory), from, tag, {timeout, in_background}); });
          },
          py::arg("tensor"), py::arg("source"), py::arg("tag"), py::arg("timeout"), py::arg("in_background"));
}

std::vector<std::string> algorithm_names(const std::string& collective) {
  std::vector<std::string> names;
  for (const Algorithm algorithm : algorithms_of(parse_collective(collective)))
    names.emplace_back(algorithm_name(algorithm));
  return names;
}

}  // namespace

void bind_collectives(py::module_& module) {
  bind_works(module);
  py::class_<Group, GroupPointer> type(module, "Group");
  type.def(py::init(&create_group), py::arg("context"), py::arg("listener"), py::arg("rank"),
           py::arg("addresses"), py::arg("timeout"), py::arg("secret"), py::arg("tuning"))
      .def(
          "abort", [](Group& self, const std::string& reason) { without_gil([&] { self.abort(reason); }); },
          py::arg("reason"))
      .def("_raise_failure",
           [](const Group& self) {
             if (const auto failure = self.failure()) std::rethrow_exception(failure);
           })
      .def_property_readonly("failed", [](const Group& self) { return self.failure() != nullptr; })
      .def("_set_timeout", &Group::set_timeout)
      .def_property_readonly("timeout", &Group::timeout)
      .def_property_readonly("rank", &Group::rank)
      .def_property_readonly("world", &Group::world)
      .def_property_readonly("addresses", [](const Group& self) { return self.addresses(); })
      .def_property_readonly("sequence", &Group::sequence)
      .def(
          "_capsule",
          [](const GroupPointer& self) {
            return py::capsule(new GroupPointer(self), group_capsule_name,
                               [](void* pointer) { delete static_cast<GroupPointer*>(pointer); });
          },
          "The group for an extension that is built on the same core, whatever pybind11 it is built with.");
  bind_calls(type);
  bind_messages(type);
  bind_closing(
      type,
      "Leaves the group: what is pending ends with ClosedError. The other ranks' operations that need "
      "this one fail.");
  module.def("collective_algorithms", &algorithm_names, py::arg("collective"),
             "The algorithms of a collective, the first for little and the last for much.");
}

}  // namespace rdmatx::bindings
