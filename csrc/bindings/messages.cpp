#include "bindings/messages.hpp"

#include <utility>

#include "bindings/direct_calls.hpp"
#include "bindings/gil.hpp"
#include "bindings/messaging_arguments.hpp"
#include "bindings/work.hpp"

namespace py = pybind11;

// A message that can be posted at once is, with the GIL: giving it up and taking it back costs more than
// that.

namespace rdmatx::bindings {
namespace {

template <class Call>
auto holding_gil(Call call) {
  const ReleasesDeferred deferred;
  return call();
}

uint64_t tag_of(PyObject* argument) {
  return argument ? unsigned_of(argument, "tag") : 0;
}

TagChoice tag_choice(PyObject* argument) {
  return argument ? tag_choice_of(argument) : TagChoice(0);
}

constexpr Signature<4> send_signature{"send", {"buffer", "tag", "timeout", "stream"}, 1};

PyObject* send(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return call_directly(send_signature, given, count, names, [&](const auto& arguments) {
    auto& connection = self_as<Connection>(self);
    OperationMemory memory = memory_of(arguments[0], Wanted::read, "buffer", arguments[3]);
    const uint64_t tag = tag_of(arguments[1]);
    const auto timeout = timeout_of(arguments[2]);
    if (!holding_gil([&] { return connection.try_send(memory, tag); }))
      without_gil([&] { connection.send(std::move(memory), tag, timeout); });
    return py::none().release().ptr();
  });
}

constexpr Signature<3> isend_signature{"isend", {"buffer", "tag", "stream"}, 1};

PyObject* isend(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return call_directly(isend_signature, given, count, names, [&](const auto& arguments) {
    const auto& connection = shared_self_as<Connection>(self);
    OperationMemory memory = memory_of(arguments[0], Wanted::read, "buffer", arguments[2]);
    const uint64_t tag = tag_of(arguments[1]);
    auto request = holding_gil([&] { return connection->try_isend(memory, tag); });
    if (!request) request = without_gil([&] { return connection->isend(std::move(memory), tag); });
    return work_object({connection, std::move(request)}).release().ptr();
  });
}

constexpr Signature<4> recv_signature{"recv", {"buffer", "tag", "timeout", "stream"}, 1};

PyObject* recv(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return call_directly(recv_signature, given, count, names, [&](const auto& arguments) {
    auto& connection = self_as<Connection>(self);
    OperationMemory memory = memory_of(arguments[0], Wanted::write, "buffer", arguments[3]);
    const TagChoice tag = tag_choice(arguments[1]);
    const auto timeout = timeout_of(arguments[2]);
    return PyLong_FromUnsignedLongLong(
        without_gil([&] { return connection.receive(std::move(memory), tag, timeout); }));
  });
}

constexpr Signature<3> irecv_signature{"irecv", {"buffer", "tag", "stream"}, 1};

PyObject* irecv(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return call_directly(irecv_signature, given, count, names, [&](const auto& arguments) {
    const auto& connection = shared_self_as<Connection>(self);
    OperationMemory memory = memory_of(arguments[0], Wanted::write, "buffer", arguments[2]);
    const TagChoice tag = tag_choice(arguments[1]);
    auto request = holding_gil([&] { return connection->try_ireceive(memory, tag); });
    if (!request) request = without_gil([&] { return connection->ireceive(std::move(memory), tag); });
    return work_object({connection, std::move(request)}).release().ptr();
  });
}

PyMethodDef message_methods[] = {
    direct_method(
        "send", send,
        "send($self, /, buffer, tag=0, timeout=None, stream=None)\n--\n\n"
        "Sends the bytes of a buffer and returns once it may be used again: up to 8 KiB at once, more "
        "when the peer has received them. Messages of one tag arrive in order. A message larger than "
        "the peer's receive raises SizeMismatchError on both sides, and the connection goes on; where "
        "the send had returned already, the next send raises it. `stream`, of memory of a GPU: the send "
        "waits for "
        "the work queued there before it; torch's or CuPy's current stream without it."),
    direct_method("isend", isend,
                  "isend($self, /, buffer, tag=0, stream=None)\n--\n\n"
                  "Starts a send; the buffer must not change until it is done."),
    direct_method(
        "recv", recv,
        "recv($self, /, buffer, tag=0, timeout=None, stream=None)\n--\n\n"
        "Receives the next message of this tag (None: of any tag) into a buffer of at least its size, "
        "and returns its bytes. On TimeoutError the receive is withdrawn where its message has not "
        "begun to arrive. `stream`, of memory of a GPU: the bytes are put there behind the work queued "
        "before."),
    direct_method("irecv", irecv,
                  "irecv($self, /, buffer, tag=0, stream=None)\n--\n\n"
                  "Starts a receive of this tag (None: of any tag; Work.tag tells which came)."),
};

}  // namespace

void bind_messages(py::handle connection_class) {
  for (PyMethodDef& method : message_methods) add_direct_method(connection_class, method);
}

}  // namespace rdmatx::bindings
