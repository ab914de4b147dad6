// Devices, contexts and errors of the fake driver, and failures to order; see fake.hpp.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <vector>

#include "fake.hpp"

namespace fake {
namespace {

struct Order {
  std::string call;
  int64_t left = 0;  // calls until it fails; 0: it fails for ever
  Result result = success;
};

struct Controls {
  std::mutex mutex;
  std::map<std::string, int64_t> settings{{"gpus", 2}, {"delay_us", 0}, {"dma_buf", 1}, {"flush", 0}};
  std::vector<Order> orders;
  std::map<std::string, int64_t> calls;

  Controls() {
    const std::pair<const char*, const char*> variables[] = {{"FAKE_CUDA_GPUS", "gpus"},
                                                             {"FAKE_CUDA_DELAY_US", "delay_us"},
                                                             {"FAKE_CUDA_DMA_BUF", "dma_buf"},
                                                             {"FAKE_CUDA_FLUSH", "flush"}};
    for (const auto& [variable, name] : variables)
      if (const char* text = std::getenv(variable)) settings[name] = std::atoll(text);
    const char* text = std::getenv("FAKE_CUDA_FAIL");
    std::istringstream list(text ? text : "");
    for (std::string item; std::getline(list, item, ',');) {
      Order order;
      std::istringstream parts(item);
      std::string number, result;
      std::getline(parts, order.call, ':');
      std::getline(parts, number, ':');
      std::getline(parts, result, ':');
      order.left = std::atoll(number.c_str());
      order.result = std::atoi(result.c_str());
      orders.push_back(order);
    }
  }
};

Controls& controls() {
  static auto* all = new Controls;
  return *all;
}

thread_local std::vector<int> contexts;
std::atomic<int> faults{0}, flushes{0};

}  // namespace

Result ordered(const char* call) {
  Controls& all = controls();
  const std::lock_guard lock(all.mutex);
  ++all.calls[call];
  for (auto order = all.orders.begin(); order != all.orders.end(); ++order) {
    if (order->call != call) continue;
    if (order->left == 0) return order->result;
    if (--order->left > 0) continue;
    const Result result = order->result;
    all.orders.erase(order);
    return result;
  }
  return success;
}

int64_t setting(const std::string& name) {
  const std::lock_guard lock(controls().mutex);
  return controls().settings[name];
}

int current_gpu() {
  return contexts.empty() ? -1 : contexts.back();
}

void fault() {
  ++faults;
}

}  // namespace fake

using fake::Result;

FAKE_EXPORT Result cuInit(unsigned) {
  FAKE_CALL(cuInit);
  return fake::setting("gpus") > 0 ? fake::success : 100;
}

FAKE_EXPORT Result cuDriverGetVersion(int* version) {
  *version = 12040;
  return fake::success;
}

FAKE_EXPORT Result cuGetErrorName(Result error, const char** name) {
  static const std::map<Result, const char*> names{
      {1, "CUDA_ERROR_INVALID_VALUE"},     {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {100, "CUDA_ERROR_NO_DEVICE"},       {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {801, "CUDA_ERROR_NOT_SUPPORTED"},
      {999, "CUDA_ERROR_UNKNOWN"}};
  const auto found = names.find(error);
  *name = found == names.end() ? nullptr : found->second;
  return *name ? fake::success : fake::invalid_value;
}

FAKE_EXPORT Result cuGetErrorString(Result, const char** text) {
  *text = "said by the fake driver";
  return fake::success;
}

FAKE_EXPORT Result cuDeviceGetCount(int* count) {
  *count = static_cast<int>(fake::setting("gpus"));
  return fake::success;
}

FAKE_EXPORT Result cuDeviceGet(int* device, int number) {
  FAKE_CALL(cuDeviceGet);
  if (number < 0 || number >= fake::setting("gpus")) return 101;
  *device = number;
  return fake::success;
}

FAKE_EXPORT Result cuDeviceGetName(char* name, int bytes, int device) {
  std::snprintf(name, static_cast<size_t>(bytes), "Fake GPU %d", device);
  return fake::success;
}

FAKE_EXPORT Result cuDeviceGetPCIBusId(char* address, int bytes, int device) {
  std::snprintf(address, static_cast<size_t>(bytes), "0000:%02x:00.0", 16 + device);
  return fake::success;
}

FAKE_EXPORT Result cuDeviceGetAttribute(int* value, int attribute, int) {
  FAKE_CALL(cuDeviceGetAttribute);
  *value = 0;
  if (attribute == 116) *value = 1;
  if (attribute == 117) *value = 1;
  if (attribute == 118) *value = fake::setting("flush") ? 0 : 100;
  if (attribute == 124) *value = static_cast<int>(fake::setting("dma_buf"));
  return fake::success;
}

FAKE_EXPORT Result cuDevicePrimaryCtxRetain(void** context, int device) {
  FAKE_CALL(cuDevicePrimaryCtxRetain);
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(device) + 1);
  return fake::success;
}

FAKE_EXPORT Result cuCtxPushCurrent_v2(void* context) {
  fake::contexts.push_back(static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1);
  return fake::success;
}

FAKE_EXPORT Result cuCtxPopCurrent_v2(void** context) {
  if (fake::contexts.empty()) return fake::invalid_context;
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(fake::contexts.back()) + 1);
  fake::contexts.pop_back();
  return fake::success;
}

FAKE_EXPORT Result cuFlushGPUDirectRDMAWrites(int, int) {
  FAKE_CALL_IN_CONTEXT(cuFlushGPUDirectRDMAWrites);
  ++fake::flushes;
  return fake::success;
}

// ---- for tests

FAKE_EXPORT void fake_set(const char* name, int64_t value) {
  const std::lock_guard lock(fake::controls().mutex);
  fake::controls().settings[name] = value;
}

/// The `number`-th call from now fails; 0: every one does. `result` 0 takes what was ordered for it back.
FAKE_EXPORT void fake_fail(const char* call, int64_t number, Result result) {
  const std::lock_guard lock(fake::controls().mutex);
  if (result == fake::success)
    std::erase_if(fake::controls().orders, [&](const fake::Order& order) { return order.call == call; });
  else
    fake::controls().orders.push_back({call, number, result});
}

FAKE_EXPORT int64_t fake_calls(const char* call) {
  const std::lock_guard lock(fake::controls().mutex);
  return fake::controls().calls[call];
}

FAKE_EXPORT int fake_faults() {
  return fake::faults;
}

FAKE_EXPORT int fake_flushes() {
  return fake::flushes;
}
