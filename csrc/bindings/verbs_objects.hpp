#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "base/error.hpp"
#include "bindings/buffers.hpp"
#include "bindings/closable.hpp"
#include "rdma/completion_queue.hpp"
#include "rdma/device.hpp"
#include "rdma/memory_region.hpp"
#include "rdma/protection_domain.hpp"
#include "rdma/queue_pair.hpp"
#include "rdma/shared_receive_queue.hpp"
#include "rdma/work.hpp"

namespace rdmatx::bindings {

using PyDevice = Closable<Device>;
using PyProtectionDomain = Closable<ProtectionDomain>;
using PyMemoryRegion = Closable<MemoryRegion>;
using PyCompletionChannel = Closable<CompletionChannel>;
using PyCompletionQueue = Closable<CompletionQueue>;
using PySharedReceiveQueue = Closable<SharedReceiveQueue>;
using PyQueuePair = Closable<QueuePair>;

/// A work request, with shares of the memory it names for as long as the Python object lives.
struct PySendWork {
  SendWork work;
  std::vector<std::shared_ptr<void>> held{};
};

struct PyReceiveWork {
  ReceiveWork work;
  std::vector<std::shared_ptr<void>> held{};
};

PyMemoryRegion register_buffer(const PyProtectionDomain& domain, const pybind11::object& buffer,
                               Access access);

/// One Python work request, or a sequence of them, as values of their own: posting links requests to each
/// other, and the same object may be posted from two threads at once.
template <class PyWork, class Work>
std::vector<Work> copy_work(const pybind11::object& work) {
  std::vector<Work> copies;
  if (pybind11::isinstance<PyWork>(work)) {
    copies.push_back(work.cast<const PyWork&>().work);
    return copies;
  }
  if (!pybind11::isinstance<pybind11::sequence>(work))
    throw UsageError("work to post is one work request or a sequence of them");
  for (const pybind11::handle each : work.cast<pybind11::sequence>()) {
    if (!pybind11::isinstance<PyWork>(each))
      throw UsageError(std::string("work to post is one work request or a sequence of them, not ") +
                       Py_TYPE(each.ptr())->tp_name);
    copies.push_back(each.cast<const PyWork&>().work);
  }
  return copies;
}

}  // namespace rdmatx::bindings
