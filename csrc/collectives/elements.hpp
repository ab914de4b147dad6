#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// How elements of each type are read, computed with and written, without branches, so that compilers turn
// loops over them into vector instructions.

namespace rdmatx::elements {

template <typename T>
[[gnu::always_inline]] inline T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
[[gnu::always_inline]] inline void store(std::byte* at, T value) noexcept {
  std::memcpy(at, &value, sizeof value);
}

[[gnu::always_inline]] inline uint32_t choose(bool condition, uint32_t yes, uint32_t no) noexcept {
  return condition ? yes : no;
}

// Half precision: 5 bits of exponent, 10 of mantissa.
[[gnu::always_inline]] inline float half_to_float(uint16_t half) noexcept {
  constexpr uint32_t rebias = uint32_t{112} << 23;
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t shifted = static_cast<uint32_t>(half & 0x7fffu) << 13;
  const uint32_t normal = shifted + rebias;
  const uint32_t special = shifted + 2 * rebias;  // infinity and NaN
  // A subnormal is a multiple of 2^-24, the distance of floats at 0.5.
  const float tiny = std::bit_cast<float>(0x3f000000u | static_cast<uint32_t>(half & 0x3ffu)) - 0.5f;
  uint32_t bits = choose(shifted >= 0x0f800000u, special, normal);
  bits = choose(shifted < 0x00800000u, std::bit_cast<uint32_t>(tiny), bits);
  return std::bit_cast<float>(bits | sign);
}

// To nearest, ties to even; every NaN becomes the quiet one.
[[gnu::always_inline]] inline uint16_t float_to_half(float value) noexcept {
  constexpr uint32_t too_large = uint32_t{143} << 23;        // 65536
  constexpr uint32_t smallest_normal = uint32_t{113} << 23;  // 2^-14
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude - (uint32_t{112} << 23) + 0xfffu + odd) >> 13;
  // Adding 0.5 leaves the multiples of 2^-24 in the low bits, rounded.
  const uint32_t tiny = std::bit_cast<uint32_t>(
                            std::bit_cast<float>(choose(magnitude < smallest_normal, magnitude, 0u)) + 0.5f) -
                        0x3f000000u;
  const uint32_t special = choose(magnitude > 0x7f800000u, 0x7e00u, 0x7c00u);
  uint32_t result = choose(magnitude < smallest_normal, tiny, normal);
  result = choose(magnitude >= too_large, special, result);
  return static_cast<uint16_t>(result | sign);
}

[[gnu::always_inline]] inline float bfloat_to_float(uint16_t value) noexcept {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

[[gnu::always_inline]] inline uint16_t float_to_bfloat(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x0040u;
  return static_cast<uint16_t>(choose((bits & 0x7fffffffu) > 0x7f800000u, quiet, rounded));
}

/// An element type: `Value` is what is computed with.
template <typename T>
struct Plain {
  using Value = T;
  static constexpr size_t bytes = sizeof(T);
  [[gnu::always_inline]] static Value read(const std::byte* at) noexcept { return load<T>(at); }
  [[gnu::always_inline]] static void write(std::byte* at, Value value) noexcept { store<T>(at, value); }
};

struct Half {
  using Value = float;
  static constexpr size_t bytes = 2;
  [[gnu::always_inline]] static Value read(const std::byte* at) noexcept {
    return half_to_float(load<uint16_t>(at));
  }
  [[gnu::always_inline]] static void write(std::byte* at, Value value) noexcept {
    store(at, float_to_half(value));
  }
};

struct Bfloat {
  using Value = float;
  static constexpr size_t bytes = 2;
  [[gnu::always_inline]] static Value read(const std::byte* at) noexcept {
    return bfloat_to_float(load<uint16_t>(at));
  }
  [[gnu::always_inline]] static void write(std::byte* at, Value value) noexcept {
    store(at, float_to_bfloat(value));
  }
};

/// Any byte but 0 is true; what is written is 0 or 1.
struct Boolean {
  using Value = uint8_t;
  static constexpr size_t bytes = 1;
  [[gnu::always_inline]] static Value read(const std::byte* at) noexcept {
    return static_cast<uint8_t>(load<uint8_t>(at) != 0);
  }
  [[gnu::always_inline]] static void write(std::byte* at, Value value) noexcept { store(at, value); }
};

template <typename T>
struct ComplexNumber {
  T real;
  T imaginary;
};

template <typename T>
struct Complex {
  using Value = ComplexNumber<T>;
  static constexpr size_t bytes = 2 * sizeof(T);
  [[gnu::always_inline]] static Value read(const std::byte* at) noexcept {
    return {load<T>(at), load<T>(at + sizeof(T))};
  }
  [[gnu::always_inline]] static void write(std::byte* at, Value value) noexcept {
    store(at, value.real);
    store(at + sizeof(T), value.imaginary);
  }
};

// Integers wrap: computed unsigned, and no narrower than int, since narrower ones would be promoted to it.
template <typename T>
using Wrapping = std::conditional_t<sizeof(T) < sizeof(uint32_t), uint32_t, std::make_unsigned_t<T>>;

struct Sum {
  template <typename T>
  [[gnu::always_inline]] static T apply(T left, T right) noexcept {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrapping<T>>(left) + static_cast<Wrapping<T>>(right));
    else
      return left + right;
  }
};

struct Product {
  template <typename T>
  [[gnu::always_inline]] static T apply(T left, T right) noexcept {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrapping<T>>(left) * static_cast<Wrapping<T>>(right));
    else
      return left * right;
  }
  template <typename T>
  [[gnu::always_inline]] static ComplexNumber<T> apply(ComplexNumber<T> left,
                                                       ComplexNumber<T> right) noexcept {
    return {left.real * right.real - left.imaginary * right.imaginary,
            left.real * right.imaginary + left.imaginary * right.real};
  }
};

// A NaN on either side is the result: a comparison with it is false, and it differs from itself.
struct Minimum {
  template <typename T>
  [[gnu::always_inline]] static T apply(T left, T right) noexcept {
    if constexpr (std::is_floating_point_v<T>)
      return (right < left) | (right != right) ? right : left;
    else
      return right < left ? right : left;
  }
};

struct Maximum {
  template <typename T>
  [[gnu::always_inline]] static T apply(T left, T right) noexcept {
    if constexpr (std::is_floating_point_v<T>)
      return (right > left) | (right != right) ? right : left;
    else
      return right > left ? right : left;
  }
};

struct And {
  template <typename T>
  [[gnu::always_inline]] static T apply(T left, T right) noexcept {
    return static_cast<T>(left & right);
  }
};

struct Or {
  template <typename T>
  [[gnu::always_inline]] static T apply(T left, T right) noexcept {
    return static_cast<T>(left | right);
  }
};

struct Xor {
  template <typename T>
  [[gnu::always_inline]] static T apply(T left, T right) noexcept {
    return static_cast<T>(left ^ right);
  }
};

}  // namespace rdmatx::elements
