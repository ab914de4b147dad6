// Every (element type, operation, variant) against a plain reference, at odd sizes and addresses.

#include "collectives/reduction.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"

using namespace rdmatx;

namespace {

constexpr DataType all_types[] = {
    DataType::float32, DataType::float64,   DataType::float16,   DataType::bfloat16, DataType::int8,
    DataType::int16,   DataType::int32,     DataType::int64,     DataType::uint8,    DataType::boolean,
    DataType::float8,  DataType::complex64, DataType::complex128};
constexpr ReduceOperation all_operations[] = {
    ReduceOperation::sum, ReduceOperation::prod, ReduceOperation::min,
    ReduceOperation::max, ReduceOperation::avg,  ReduceOperation::band,
    ReduceOperation::bor, ReduceOperation::bxor, ReduceOperation::premul_sum};
constexpr ReductionVariant all_variants[] = {ReductionVariant::baseline, ReductionVariant::avx2,
                                             ReductionVariant::avx512};
constexpr size_t sizes[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1000, 1023};

bool reducible(DataType type, ReduceOperation operation) {
  try {
    check_reducible(type, operation);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

// The value of a half or bfloat16 by its definition, with scaling by powers of two.
double decode_small_float(uint16_t bits, int mantissa_bits, int bias) {
  const int exponent_bits = 15 - mantissa_bits;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

// The nearest one, ties to even, found by looking at all of them between which the value can lie.
uint16_t encode_small_float(double value, int mantissa_bits, int bias) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = ((1 << (15 - mantissa_bits)) - 1) << mantissa_bits;
  if (std::isnan(value)) return 0x7fff;
  const double magnitude = std::fabs(value);
  int low = 0;
  int high = infinity;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (decode_small_float(static_cast<uint16_t>(middle), mantissa_bits, bias) <= magnitude ? low : high) =
        middle;
  }
  const double below = decode_small_float(static_cast<uint16_t>(low), mantissa_bits, bias);
  // Beyond the largest lies what would be the next one, and from half way on it is infinity.
  const double above = high == infinity
                           ? std::ldexp(1.0, (infinity >> mantissa_bits) - bias)
                           : decode_small_float(static_cast<uint16_t>(high), mantissa_bits, bias);
  const double middle = (below + above) / 2;
  const bool up = magnitude > middle || (magnitude == middle && (low & 1) != 0);
  return static_cast<uint16_t>((up ? high : low) | sign);
}

template <typename T>
T random_value(std::mt19937_64& random) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (random() % 16) {
      case 0:
        return std::numeric_limits<T>::quiet_NaN();
      case 1:
        return random() % 2 ? std::numeric_limits<T>::infinity() : -std::numeric_limits<T>::infinity();
      case 2:
        return T(0);
      default:
        return static_cast<T>(std::ldexp(static_cast<double>(random() % 20001) - 10000.0,
                                         static_cast<int>(random() % 30) - 20));
    }
  } else {
    return static_cast<T>(random());
  }
}

template <typename T>
T plain(ReduceOperation operation, T left, T right) {
  constexpr bool whole = std::is_integral_v<T>;
  switch (operation) {
    case ReduceOperation::sum:
    case ReduceOperation::avg:
    case ReduceOperation::premul_sum:
      if constexpr (whole) return static_cast<T>(static_cast<uint64_t>(left) + static_cast<uint64_t>(right));
      return static_cast<T>(left + right);
    case ReduceOperation::prod:
      if constexpr (whole) return static_cast<T>(static_cast<uint64_t>(left) * static_cast<uint64_t>(right));
      return static_cast<T>(left * right);
    case ReduceOperation::min:
    case ReduceOperation::max:
      if constexpr (!whole) {
        if (std::isnan(left)) return left;
        if (std::isnan(right)) return right;
      }
      return (operation == ReduceOperation::min) == (right < left) && left != right ? right : left;
    default:
      if constexpr (whole) {
        if (operation == ReduceOperation::band) return static_cast<T>(left & right);
        if (operation == ReduceOperation::bor) return static_cast<T>(left | right);
        return static_cast<T>(left ^ right);
      }
      return left;
  }
}

// One element: bytes in, bytes out.
void reference(DataType type, ReduceOperation operation, std::byte* out, const std::byte* left,
               const std::byte* right) {
  const auto with = [&]<typename T>(T a) {
    T b;
    std::memcpy(&a, left, sizeof a);
    std::memcpy(&b, right, sizeof b);
    const T result = plain(operation, a, b);
    std::memcpy(out, &result, sizeof result);
  };
  const auto small_float = [&](int mantissa_bits, int bias) {
    uint16_t a, b;
    std::memcpy(&a, left, 2);
    std::memcpy(&b, right, 2);
    const auto result =
        encode_small_float(plain(operation, static_cast<float>(decode_small_float(a, mantissa_bits, bias)),
                                 static_cast<float>(decode_small_float(b, mantissa_bits, bias))),
                           mantissa_bits, bias);
    std::memcpy(out, &result, 2);
  };
  const auto complex_number = [&]<typename T>(T) {
    T a[2], b[2], result[2];
    std::memcpy(a, left, sizeof a);
    std::memcpy(b, right, sizeof b);
    if (operation == ReduceOperation::prod) {
      // Rounded after each step, as the loops are.
      const volatile T rr = a[0] * b[0], ii = a[1] * b[1], ri = a[0] * b[1], ir = a[1] * b[0];
      result[0] = rr - ii;
      result[1] = ri + ir;
    } else {
      result[0] = a[0] + b[0];
      result[1] = a[1] + b[1];
    }
    std::memcpy(out, result, sizeof result);
  };
  switch (type) {
    case DataType::float32:
      return with(float{});
    case DataType::float64:
      return with(double{});
    case DataType::float16:
      return small_float(10, 15);
    case DataType::bfloat16:
      return small_float(7, 127);
    case DataType::int8:
      return with(int8_t{});
    case DataType::int16:
      return with(int16_t{});
    case DataType::int32:
      return with(int32_t{});
    case DataType::int64:
      return with(int64_t{});
    case DataType::uint8:
      return with(uint8_t{});
    case DataType::boolean: {
      const bool a = *left != std::byte{0}, b = *right != std::byte{0};
      const bool all = operation == ReduceOperation::prod || operation == ReduceOperation::min ||
                       operation == ReduceOperation::band;
      *out = static_cast<std::byte>(operation == ReduceOperation::bxor ? a != b : all ? a && b : a || b);
      return;
    }
    case DataType::complex64:
      return complex_number(float{});
    case DataType::complex128:
      return complex_number(double{});
    case DataType::float8:
      break;
  }
  throw std::logic_error("no reference");
}

bool is_nan(DataType type, const std::byte* at) {
  switch (type) {
    case DataType::float32: {
      float value;
      std::memcpy(&value, at, sizeof value);
      return std::isnan(value);
    }
    case DataType::float64: {
      double value;
      std::memcpy(&value, at, sizeof value);
      return std::isnan(value);
    }
    case DataType::float16:
    case DataType::bfloat16: {
      uint16_t value;
      std::memcpy(&value, at, 2);
      return std::isnan(type == DataType::float16 ? decode_small_float(value, 10, 15)
                                                  : decode_small_float(value, 7, 127));
    }
    case DataType::complex64:
      return is_nan(DataType::float32, at) || is_nan(DataType::float32, at + 4);
    case DataType::complex128:
      return is_nan(DataType::float64, at) || is_nan(DataType::float64, at + 8);
    default:
      return false;
  }
}

std::vector<std::byte> random_elements(DataType type, size_t count, std::mt19937_64& random) {
  std::vector<std::byte> bytes(count * element_bytes(type));
  for (size_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + i * element_bytes(type);
    const auto put = [&](auto value) { std::memcpy(at, &value, sizeof value); };
    switch (type) {
      case DataType::float32:
        put(random_value<float>(random));
        break;
      case DataType::float64:
        put(random_value<double>(random));
        break;
      case DataType::float16:
        put(encode_small_float(random_value<float>(random), 10, 15));
        break;
      case DataType::complex64:
        put(std::complex<float>(random_value<float>(random), random_value<float>(random)));
        break;
      case DataType::complex128:
        put(std::complex<double>(random_value<double>(random), random_value<double>(random)));
        break;
      default:
        for (size_t k = 0; k < element_bytes(type); ++k) at[k] = static_cast<std::byte>(random());
    }
  }
  return bytes;
}

std::string text(ReductionVariant variant, DataType type, ReduceOperation operation, size_t count, size_t i) {
  return std::string(reduction_variant_name(variant)) + " " + data_type_name(type) + " " +
         reduce_operation_name(operation) + ", element " + std::to_string(i) + " of " + std::to_string(count);
}

void check_elements(ReductionVariant variant, DataType type, ReduceOperation operation, size_t count,
                    size_t shift, int alias) {
  const size_t step = element_bytes(type);
  std::mt19937_64 random(count * 31 + shift);
  const auto left = random_elements(type, count, random);
  const auto right = random_elements(type, count, random);
  std::vector<std::byte> expected(count * step);
  for (size_t i = 0; i < count; ++i)
    reference(type, operation, expected.data() + i * step, left.data() + i * step, right.data() + i * step);
  // Each at an address of its own, with bytes around that must stay.
  std::vector<std::byte> a(left.size() + 80, std::byte{0x5a}), b(a), c(a);
  std::copy(left.begin(), left.end(), a.begin() + static_cast<std::ptrdiff_t>(shift));
  std::copy(right.begin(), right.end(), b.begin() + static_cast<std::ptrdiff_t>(shift) + 1);
  std::byte* out = alias == 0 ? c.data() + 2 * shift : alias == 1 ? a.data() + shift : b.data() + shift + 1;
  reduce_elements(variant, type, operation, out, a.data() + shift, b.data() + shift + 1, count);
  for (size_t i = 0; i < count; ++i) {
    const std::byte* wanted = expected.data() + i * step;
    const std::byte* got = out + i * step;
    const bool same = is_nan(type, wanted) ? is_nan(type, got) : std::memcmp(wanted, got, step) == 0;
    if (!same) throw std::runtime_error(text(variant, type, operation, count, i));
  }
  CHECK(out[count * step] == std::byte{0x5a});
}

}  // namespace

TEST(every_type_operation_and_variant_at_odd_sizes_and_addresses) {
  size_t checked = 0;
  for (const ReductionVariant variant : all_variants) {
    if (!has_reduction_variant(variant)) continue;
    for (const DataType type : all_types) {
      for (const ReduceOperation operation : all_operations) {
        if (!reducible(type, operation)) continue;
        for (const size_t count : sizes) {
          check_elements(variant, type, operation, count, 0, 0);
          check_elements(variant, type, operation, count, 3, 1);
          check_elements(variant, type, operation, count, 5, 2);
          checked += 3;
        }
      }
    }
  }
  CHECK(checked > 3000);
}

TEST(every_half_and_bfloat_survives_and_sums_round_to_even) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto value = static_cast<uint16_t>(bits);
    const uint16_t minus_zero = 0x8000;  // x + -0 is x, bit by bit
    for (const DataType type : {DataType::float16, DataType::bfloat16}) {
      uint16_t out = 0;
      reduce_elements(type, ReduceOperation::sum, &out, &value, &minus_zero, 1);
      const auto* at = reinterpret_cast<const std::byte*>(&value);
      if (is_nan(type, at))
        CHECK(is_nan(type, reinterpret_cast<const std::byte*>(&out)));
      else
        CHECK_EQ(out, value);
    }
  }
  // 2048 + 1 lies half way between two halves; the even one is 2048.
  const uint16_t large = 0x6800, one = 0x3c00, three = 0x4200;
  uint16_t out = 0;
  reduce_elements(DataType::float16, ReduceOperation::sum, &out, &large, &one, 1);
  CHECK_EQ(out, 0x6800);
  reduce_elements(DataType::float16, ReduceOperation::sum, &out, &large, &three, 1);
  CHECK_EQ(out, 0x6802);
}

TEST(a_nan_on_either_side_wins_min_and_max) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), one = 1;
  for (const auto operation : {ReduceOperation::min, ReduceOperation::max}) {
    float out = 0;
    reduce_elements(DataType::float32, operation, &out, &nan, &one, 1);
    CHECK(std::isnan(out));
    reduce_elements(DataType::float32, operation, &out, &one, &nan, 1);
    CHECK(std::isnan(out));
  }
}

TEST(integers_wrap_and_average_toward_zero) {
  int8_t out[3] = {-7, 7, 100};
  divide_elements(DataType::int8, out, 3, 2);
  CHECK_EQ(out[0], -3);
  CHECK_EQ(out[1], 3);
  // More ranks than the element type has values.
  divide_elements(DataType::int8, out, 3, 1000);
  CHECK_EQ(out[2], 0);
  const int8_t large = 127, one = 1;
  reduce_elements(DataType::int8, ReduceOperation::sum, out, &large, &one, 1);
  CHECK_EQ(out[0], -128);
}

TEST(averages_and_factors_of_floats) {
  double doubles[2] = {3, -1};
  divide_elements(DataType::float64, doubles, 2, 4);
  CHECK_EQ(doubles[0], 0.75);
  CHECK_EQ(doubles[1], -0.25);
  const float from[3] = {1, 2, -3};
  float to[3];
  multiply_elements(DataType::float32, to, from, 3, 0.5);
  CHECK_EQ(to[2], -1.5f);
  const std::complex<float> number(2, -4);
  std::complex<float> half;
  multiply_elements(DataType::complex64, &half, &number, 1, 0.5);
  CHECK(half == std::complex<float>(1, -2));
}

TEST(what_makes_no_sense_is_refused_in_words) {
  CHECK_THROWS(UsageError, "no order", check_reducible(DataType::complex64, ReduceOperation::max));
  CHECK_THROWS(UsageError, "are moved", check_reducible(DataType::float8, ReduceOperation::sum));
  CHECK_THROWS(UsageError, "truth values", check_reducible(DataType::boolean, ReduceOperation::avg));
  CHECK_THROWS(UsageError, "on bits", check_reducible(DataType::float32, ReduceOperation::bor));
  CHECK_THROWS(UsageError, "factor", check_reducible(DataType::int32, ReduceOperation::premul_sum));
  CHECK_THROWS(UsageError, "it is one of sum, prod", parse_reduce_operation("mean"));
  CHECK_THROWS(UsageError, "it is one of float32", parse_data_type("float31"));
}

TEST(names_and_sizes_go_both_ways) {
  for (const DataType type : all_types) CHECK(parse_data_type(data_type_name(type)) == type);
  for (const ReduceOperation operation : all_operations)
    CHECK(parse_reduce_operation(reduce_operation_name(operation)) == operation);
  CHECK_EQ(element_bytes(DataType::complex128), 16u);
  CHECK_EQ(element_bytes(DataType::bfloat16), 2u);
}

RDMATX_TEST_MAIN()
