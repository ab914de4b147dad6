#pragma once

#include <pybind11/pybind11.h>

// One function for each part of the extension; module.cpp calls them in this order.

namespace rdmatx::bindings {

/// Translates the C++ errors to the classes of rdmatx/errors.py, with their attributes.
void bind_errors(pybind11::module_& module);
/// HostBuffer, buffer_info.
void bind_buffers(pybind11::module_& module);
/// list_devices, choose_device, system_report.
void bind_devices(pybind11::module_& module);
/// The enumerations and plain values of the verbs.
void bind_verbs_types(pybind11::module_& module);
/// Device, ProtectionDomain, MemoryRegion, completion channels and queues, shared receive queues.
void bind_verbs(pybind11::module_& module);
/// SendWork, ReceiveWork, QueuePair.
void bind_queue_pairs(pybind11::module_& module);
/// Connection, Work, WaitingMessage.
void bind_connections(pybind11::module_& module);
/// Context, Listener, Region, RemoteKey, and the above.
void bind_messaging(pybind11::module_& module);
/// Group, CollectiveWork.
void bind_collectives(pybind11::module_& module);
/// The submodule `testing`: faults, and the raw ways that benchmarks compare with.
void bind_testing(pybind11::module_& module);
void bind_raw_copies(pybind11::module_& testing);

}  // namespace rdmatx::bindings
