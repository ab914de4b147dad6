#include "gpu/cuda.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/dynlib.hpp"
#include "base/error.hpp"
#include "base/log.hpp"

namespace rdmatx::cuda {
namespace {

constexpr const char* standard_file = "libcuda.so.1";
constexpr int most_gpus = 64;

std::string words_for(const Driver& driver, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.error_name(result, &name) != success || !name) name = "an error it has no name for";
  if (driver.error_string(result, &text) != success || !text) text = "";
  return std::string(name) + " (" + std::to_string(result) + ")" + (*text ? std::string(": ") + text : "");
}

/// Why cuInit() may refuse, and what to do then.
std::string advice_for(Result result) {
  switch (result) {
    case 34:
      return "this is the toolkit's stub library, not a driver: take it out of LD_LIBRARY_PATH";
    case 100:
      return "the driver sees no GPU: check nvidia-smi, CUDA_VISIBLE_DEVICES, and that a container was "
             "started "
             "with --gpus";
    case 803:
      return "the library and the kernel module are of different versions: reboot, or install one version of "
             "both";
    default:
      return "check nvidia-smi and the kernel's log";
  }
}

std::unique_ptr<Driver> load(std::string& reason) {
  const char* named = std::getenv("RDMATX_CUDA_LIBRARY");
  const std::string file = named && *named ? named : standard_file;
  const DynamicLibrary library(file);
  if (!library) {
    reason = "the CUDA driver cannot be loaded (" + library.error() +
             "): a machine with a GPU gets it with the NVIDIA driver";
    return nullptr;
  }
  auto driver = std::make_unique<Driver>();
  std::string missing;
#define X(member, function, parameters)                                                   \
  driver->member = reinterpret_cast<decltype(driver->member)>(library.symbol(#function)); \
  if (!driver->member && missing.empty()) missing = #function;
  RDMATX_CUDA_CALLS(X)
#undef X
#define X(member, function, parameters) \
  driver->member = reinterpret_cast<decltype(driver->member)>(library.symbol(#function));
  RDMATX_CUDA_NEWER_CALLS(X)
#undef X
  if (!missing.empty()) {
    reason =
        "the CUDA driver " + file + " lacks " + missing + ": it is too old (CUDA 11.0 or newer is needed)";
    return nullptr;
  }
  if (const Result result = driver->init(0); result != success) {
    reason = "the CUDA driver does not start: cuInit says " + words_for(*driver, result) + "; " +
             advice_for(result);
    return nullptr;
  }
  return driver;
}

/// The primary context of a GPU, taken once and kept: giving it back would end what the process has on it.
Handle primary_context(const Driver& driver, int number) {
  static std::mutex mutex;
  static std::array<Handle, most_gpus> contexts{};
  if (number < 0 || number >= most_gpus)
    throw UsageError("there is no GPU with number " + std::to_string(number));
  const std::lock_guard lock(mutex);
  Handle& context = contexts[static_cast<size_t>(number)];
  if (context) return context;
  Device device = 0;
  const std::string subject = "GPU " + std::to_string(number);
  check(driver, driver.device(&device, number), "cuDeviceGet", subject);
  check(driver, driver.retain_context(&context, device), "cuDevicePrimaryCtxRetain", subject);
  return context;
}

}  // namespace

const Driver* find_driver(std::string* reason) {
  static std::atomic<const Driver*> loaded{nullptr};
  if (const Driver* driver = loaded.load(std::memory_order_acquire)) return driver;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (const Driver* driver = loaded.load(std::memory_order_acquire)) return driver;
  std::string why;
  const Driver* driver = load(why).release();  // never unloaded: its threads outlive everything
  if (driver)
    loaded.store(driver, std::memory_order_release);
  else if (reason)
    *reason = why;
  return driver;
}

const Driver& need_driver() {
  std::string reason;
  if (const Driver* driver = find_driver(&reason)) return *driver;
  throw UnavailableError("no GPU can be used: " + reason);
}

void check(const Driver& driver, Result result, const char* call, const std::string& context) {
  if (result == success) return;
  throw CudaError(
      call, result,
      std::string(call) + " failed: " + words_for(driver, result) + (context.empty() ? "" : ". " + context));
}

CurrentGpu::CurrentGpu(const Driver& driver, int number) : driver_(driver) {
  check(driver, driver.push_context(primary_context(driver, number)), "cuCtxPushCurrent");
}

CurrentGpu::~CurrentGpu() {
  Handle popped = nullptr;
  if (driver_.pop_context(&popped) != success)
    log(LogLevel::error, "the CUDA driver lost the context that was current (cuCtxPopCurrent failed)");
}

}  // namespace rdmatx::cuda
