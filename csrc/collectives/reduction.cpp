#include "collectives/reduction.hpp"

#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "collectives/elements.hpp"

namespace rdmatx {
namespace {

using namespace elements;
using Kernel = void (*)(std::byte*, const std::byte*, const std::byte*, size_t);

// `out` is the same as an input or apart from it, so nothing carries over from one round to the next.
#if defined(__clang__)
#define RDMATX_INDEPENDENT_ROUNDS _Pragma("clang loop vectorize(assume_safety)")
#else
#define RDMATX_INDEPENDENT_ROUNDS _Pragma("GCC ivdep")
#endif

// One loop, compiled for each kind of processor: the target attribute is the only difference.
#define RDMATX_KERNEL(name, target)                                                                      \
  template <typename Element, typename Operation>                                                        \
  target void name(std::byte* out, const std::byte* left, const std::byte* right, size_t count) {        \
    constexpr size_t step = Element::bytes;                                                              \
    RDMATX_INDEPENDENT_ROUNDS                                                                            \
    for (size_t i = 0; i < count; ++i)                                                                   \
      Element::write(out + i * step,                                                                     \
                     Operation::apply(Element::read(left + i * step), Element::read(right + i * step))); \
  }

RDMATX_KERNEL(kernel_baseline, )
#if defined(__x86_64__)
RDMATX_KERNEL(kernel_avx2, __attribute__((target("avx2"))))
RDMATX_KERNEL(kernel_avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#endif
#undef RDMATX_KERNEL

template <typename Element, typename Operation>
Kernel choose_variant(ReductionVariant variant) noexcept {
#if defined(__x86_64__)
  // Not for complex products: GCC 12 fuses their multiplications and additions there whatever it is told, and
  // then the bits depend on the processor.
  constexpr bool fused = requires(typename Element::Value value) { value.imaginary; };
  if (fused && variant == ReductionVariant::avx512) variant = ReductionVariant::avx2;
  if (variant == ReductionVariant::avx512) return &kernel_avx512<Element, Operation>;
  if (variant == ReductionVariant::avx2) return &kernel_avx2<Element, Operation>;
#endif
  static_cast<void>(variant);
  return &kernel_baseline<Element, Operation>;
}

template <typename Element>
Kernel arithmetic(ReductionVariant variant, ReduceOperation operation) noexcept {
  switch (operation) {
    case ReduceOperation::sum:
    case ReduceOperation::avg:
    case ReduceOperation::premul_sum:
      return choose_variant<Element, Sum>(variant);
    case ReduceOperation::prod:
      return choose_variant<Element, Product>(variant);
    case ReduceOperation::min:
      return choose_variant<Element, Minimum>(variant);
    case ReduceOperation::max:
      return choose_variant<Element, Maximum>(variant);
    default:
      return nullptr;
  }
}

template <typename Element>
Kernel integer(ReductionVariant variant, ReduceOperation operation) noexcept {
  switch (operation) {
    case ReduceOperation::band:
      return choose_variant<Element, And>(variant);
    case ReduceOperation::bor:
      return choose_variant<Element, Or>(variant);
    case ReduceOperation::bxor:
      return choose_variant<Element, Xor>(variant);
    case ReduceOperation::premul_sum:
      return nullptr;
    default:
      return arithmetic<Element>(variant, operation);
  }
}

Kernel boolean(ReductionVariant variant, ReduceOperation operation) noexcept {
  switch (operation) {
    case ReduceOperation::sum:
    case ReduceOperation::max:
    case ReduceOperation::bor:
      return choose_variant<Boolean, Or>(variant);
    case ReduceOperation::prod:
    case ReduceOperation::min:
    case ReduceOperation::band:
      return choose_variant<Boolean, And>(variant);
    case ReduceOperation::bxor:
      return choose_variant<Boolean, Xor>(variant);
    default:
      return nullptr;
  }
}

/// Null where there is no such reduction. A sum of complex numbers is asked for as one of their parts.
Kernel find_kernel(ReductionVariant variant, DataType type, ReduceOperation operation) noexcept {
  switch (type) {
    case DataType::float32:
      return arithmetic<Plain<float>>(variant, operation);
    case DataType::float64:
      return arithmetic<Plain<double>>(variant, operation);
    case DataType::float16:
      return arithmetic<Half>(variant, operation);
    case DataType::bfloat16:
      return arithmetic<Bfloat>(variant, operation);
    case DataType::int8:
      return integer<Plain<int8_t>>(variant, operation);
    case DataType::int16:
      return integer<Plain<int16_t>>(variant, operation);
    case DataType::int32:
      return integer<Plain<int32_t>>(variant, operation);
    case DataType::int64:
      return integer<Plain<int64_t>>(variant, operation);
    case DataType::uint8:
      return integer<Plain<uint8_t>>(variant, operation);
    case DataType::boolean:
      return boolean(variant, operation);
    case DataType::complex64:
      return operation == ReduceOperation::prod ? choose_variant<Complex<float>, Product>(variant) : nullptr;
    case DataType::complex128:
      return operation == ReduceOperation::prod ? choose_variant<Complex<double>, Product>(variant) : nullptr;
    case DataType::float8:
      return nullptr;
  }
  return nullptr;
}

bool is_complex(DataType type) noexcept {
  return type == DataType::complex64 || type == DataType::complex128;
}

bool is_sum(ReduceOperation operation) noexcept {
  return operation == ReduceOperation::sum || operation == ReduceOperation::avg ||
         operation == ReduceOperation::premul_sum;
}

// What a complex number is made of; sums, and products with a real number, go by its parts.
DataType part_of(DataType type) noexcept {
  return type == DataType::complex64 ? DataType::float32 : DataType::float64;
}

bool is_narrower(ReductionVariant one, ReductionVariant other) noexcept {
  return static_cast<int>(one) < static_cast<int>(other);
}

ReductionVariant widest_variant() noexcept {
  for (const auto variant : {ReductionVariant::avx512, ReductionVariant::avx2})
    if (has_reduction_variant(variant)) return variant;
  return ReductionVariant::baseline;
}

ReductionVariant choose_variant_of_process() noexcept {
  const ReductionVariant widest = widest_variant();
  const char* text = std::getenv("RDMATX_REDUCTION");
  if (!text) return widest;
  for (const auto variant : {ReductionVariant::baseline, ReductionVariant::avx2, ReductionVariant::avx512}) {
    if (std::string(text) != reduction_variant_name(variant)) continue;
    return is_narrower(variant, widest) ? variant : widest;
  }
  log(LogLevel::warning, std::string("RDMATX_REDUCTION is \"") + text +
                             "\", and should be baseline, avx2 or avx512; it is ignored");
  return widest;
}

template <typename Element>
void multiply(std::byte* out, const std::byte* data, size_t count, double factor) {
  using Value = typename Element::Value;
  const auto by = static_cast<Value>(factor);
  constexpr size_t step = Element::bytes;
  RDMATX_INDEPENDENT_ROUNDS
  for (size_t i = 0; i < count; ++i) Element::write(out + i * step, Element::read(data + i * step) * by);
}

template <typename Element>
void divide(std::byte* data, size_t count, uint64_t divisor) {
  using Value = typename Element::Value;
  constexpr size_t step = Element::bytes;
  if constexpr (std::is_floating_point_v<Value>) {
    const auto by = static_cast<Value>(divisor);
    for (size_t i = 0; i < count; ++i) Element::write(data + i * step, Element::read(data + i * step) / by);
  } else {
    // As wide as the divisor may be: a narrow element divides by more ranks than it can hold.
    const auto by = static_cast<int64_t>(divisor);
    for (size_t i = 0; i < count; ++i)
      Element::write(data + i * step,
                     static_cast<Value>(static_cast<int64_t>(Element::read(data + i * step)) / by));
  }
}

[[noreturn]] void refuse(DataType type, ReduceOperation operation, const std::string& why) {
  throw UsageError(std::string("op=\"") + reduce_operation_name(operation) + "\" of " + data_type_name(type) +
                   ": " + why);
}

}  // namespace

const char* reduction_variant_name(ReductionVariant variant) noexcept {
  switch (variant) {
    case ReductionVariant::avx2:
      return "avx2";
    case ReductionVariant::avx512:
      return "avx512";
    case ReductionVariant::baseline:
      break;
  }
  return "baseline";
}

bool has_reduction_variant(ReductionVariant variant) noexcept {
#if defined(__x86_64__)
  switch (variant) {
    case ReductionVariant::avx2:
      return __builtin_cpu_supports("avx2");
    case ReductionVariant::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case ReductionVariant::baseline:
      break;
  }
#endif
  return variant == ReductionVariant::baseline;
}

ReductionVariant best_reduction_variant() noexcept {
  static const ReductionVariant chosen = choose_variant_of_process();
  return chosen;
}

void check_reducible(DataType type, ReduceOperation operation) {
  if (is_complex(type) && is_sum(operation)) return;
  if (find_kernel(ReductionVariant::baseline, type, operation)) return;
  if (type == DataType::float8)
    refuse(type, operation,
           "floats of 8 bits are moved, not reduced, since a sum of them has no use: convert to bfloat16 or "
           "float32 first");
  if (operation == ReduceOperation::min || operation == ReduceOperation::max)
    refuse(type, operation, "complex numbers have no order: reduce their magnitudes");
  if (operation == ReduceOperation::avg)
    refuse(type, operation, "there is no average of truth values: convert to a number first");
  if (operation == ReduceOperation::premul_sum)
    refuse(type, operation, "the factor is a real number: convert to a float type, or multiply first");
  refuse(type, operation, "operations on bits are for integers and bool");
}

void reduce_elements(ReductionVariant variant, DataType type, ReduceOperation operation, void* out,
                     const void* left, const void* right, size_t count) {
  if (is_complex(type) && is_sum(operation)) {
    type = part_of(type);
    count *= 2;
  }
  const Kernel kernel = find_kernel(variant, type, operation);
  if (!kernel) check_reducible(type, operation);
  kernel(static_cast<std::byte*>(out), static_cast<const std::byte*>(left),
         static_cast<const std::byte*>(right), count);
}

void reduce_elements(DataType type, ReduceOperation operation, void* out, const void* left, const void* right,
                     size_t count) {
  reduce_elements(best_reduction_variant(), type, operation, out, left, right, count);
}

void divide_elements(DataType type, void* data, size_t count, uint64_t divisor) {
  check_reducible(type, ReduceOperation::avg);
  auto* bytes = static_cast<std::byte*>(data);
  switch (type) {
    case DataType::float32:
      return divide<Plain<float>>(bytes, count, divisor);
    case DataType::float64:
      return divide<Plain<double>>(bytes, count, divisor);
    case DataType::float16:
      return divide<Half>(bytes, count, divisor);
    case DataType::bfloat16:
      return divide<Bfloat>(bytes, count, divisor);
    case DataType::int8:
      return divide<Plain<int8_t>>(bytes, count, divisor);
    case DataType::int16:
      return divide<Plain<int16_t>>(bytes, count, divisor);
    case DataType::int32:
      return divide<Plain<int32_t>>(bytes, count, divisor);
    case DataType::int64:
      return divide<Plain<int64_t>>(bytes, count, divisor);
    case DataType::uint8:
      return divide<Plain<uint8_t>>(bytes, count, divisor);
    case DataType::complex64:
      return divide<Plain<float>>(bytes, 2 * count, divisor);
    case DataType::complex128:
      return divide<Plain<double>>(bytes, 2 * count, divisor);
    case DataType::boolean:
    case DataType::float8:
      break;
  }
}

void multiply_elements(DataType type, void* out, const void* data, size_t count, double factor) {
  check_reducible(type, ReduceOperation::premul_sum);
  auto* to = static_cast<std::byte*>(out);
  const auto* from = static_cast<const std::byte*>(data);
  switch (type) {
    case DataType::float32:
      return multiply<Plain<float>>(to, from, count, factor);
    case DataType::float64:
      return multiply<Plain<double>>(to, from, count, factor);
    case DataType::float16:
      return multiply<Half>(to, from, count, factor);
    case DataType::bfloat16:
      return multiply<Bfloat>(to, from, count, factor);
    case DataType::complex64:
      return multiply<Plain<float>>(to, from, 2 * count, factor);
    case DataType::complex128:
      return multiply<Plain<double>>(to, from, 2 * count, factor);
    default:
      break;
  }
}

}  // namespace rdmatx
