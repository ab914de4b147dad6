#pragma once

#include <cstddef>
#include <cstdint>

#include "base/export.hpp"
#include "collectives/data_type.hpp"

namespace rdmatx {

/// Which instructions the loops use; the results are the same, bit by bit.
enum class ReductionVariant : uint8_t { baseline, avx2, avx512 };

/// The widest that this processor has; RDMATX_REDUCTION=baseline|avx2|avx512 sets a narrower one.
RDMATX_API ReductionVariant best_reduction_variant() noexcept;
RDMATX_API bool has_reduction_variant(ReductionVariant variant) noexcept;
RDMATX_API const char* reduction_variant_name(ReductionVariant variant) noexcept;

/// Throws UsageError that says why, where elements of this type cannot be reduced this way: complex numbers
/// have no order, bits are of integers, 8-bit floats are only moved.
RDMATX_API void check_reducible(DataType type, ReduceOperation operation);

/// out[i] = left[i] op right[i] for `count` elements; `out` may be `left` or `right`, and must not overlap
/// them otherwise. Memory may lie at any address. The sums of avg and premul_sum are plain sums: see the
/// functions below. float16 and bfloat16 are computed in float32 and rounded to nearest even, integers wrap,
/// min and max of anything and NaN are NaN. sum, max and bor of bool are its "or"; prod, min and band its
/// "and".
RDMATX_API void reduce_elements(DataType type, ReduceOperation operation, void* out, const void* left,
                                const void* right, size_t count);
RDMATX_API void reduce_elements(ReductionVariant variant, DataType type, ReduceOperation operation, void* out,
                                const void* left, const void* right, size_t count);

/// data[i] = data[i] / divisor: what is left to do of an average.
RDMATX_API void divide_elements(DataType type, void* data, size_t count, uint64_t divisor);
/// out[i] = data[i] * factor: what comes before a premul_sum. `out` may be `data`.
RDMATX_API void multiply_elements(DataType type, void* out, const void* data, size_t count, double factor);

}  // namespace rdmatx
