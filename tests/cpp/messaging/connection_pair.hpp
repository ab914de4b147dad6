#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "messaging/context.hpp"

// Both ends of a connection within one process, and memory with known content.

namespace rdmatx::testing {

/// Seconds after which a wait that should end has failed.
constexpr double patience = 30;

/// The software HCA with the limits of a poor device.
inline const Verbs* poor_verbs() {
  static const Verbs verbs = [] {
    Verbs copy = *soft_verbs();
    copy.query_device = [](ibv_context* context, ibv_device_attr* attributes) {
      const int code = soft_verbs()->query_device(context, attributes);
      attributes->max_mr_size = 1 << 21;
      return code;
    };
    copy.query_port = [](ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
      const int code = soft_verbs()->query_port(context, port, attributes);
      attributes->max_msg_sz = 300'001;
      return code;
    };
    return copy;
  }();
  return &verbs;
}

struct Pair {
  explicit Pair(const Verbs* verbs = soft_verbs(), bool verify = false)
      : context(std::make_shared<Context>(Device::open(verbs), patience, verify)),
        listener(context->listen("127.0.0.1:0")),
        near(context->connect(listener->address(), {})),
        far(listener->accept({})) {}

  explicit Pair(OpenedDevices devices)
      : context(std::make_shared<Context>(std::move(devices), patience)),
        listener(context->listen("127.0.0.1:0")),
        near(context->connect(listener->address(), {})),
        far(listener->accept({})) {}

  std::shared_ptr<Context> context;
  std::shared_ptr<Listener> listener;
  std::shared_ptr<Connection> near;
  std::shared_ptr<Connection> far;
};

inline std::vector<uint8_t> content(size_t bytes, uint32_t seed) {
  std::vector<uint8_t> data(bytes);
  uint32_t state = seed * 2654435761u + 1;
  for (uint8_t& byte : data) byte = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  return data;
}

inline OperationMemory memory_of(std::vector<uint8_t>& data) {
  return {data.data(), data.size(), {}, {}};
}

}  // namespace rdmatx::testing
