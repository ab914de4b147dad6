#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace rdmatx {

/// A list of plain values whose first few lie inside: most operations have one part, and that costs no
/// allocation.
template <typename T, size_t Inside>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  SmallVector() = default;
  SmallVector(std::vector<T> values) {  // NOLINT: a list is a list
    if (values.size() > Inside) {
      more_ = std::move(values);
      count_ = more_.size();
    } else {
      for (const T& value : values) push_back(value);
    }
  }
  void push_back(const T& value) {
    if (count_ < Inside && more_.empty()) {
      inside_[count_++] = value;
      return;
    }
    if (more_.empty()) more_.assign(inside_, inside_ + count_);
    more_.push_back(value);
    ++count_;
  }
  size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  const T* begin() const noexcept { return more_.empty() ? inside_ : more_.data(); }
  const T* end() const noexcept { return begin() + count_; }
  const T& operator[](size_t index) const noexcept { return begin()[index]; }
  const T& front() const noexcept { return *begin(); }

 private:
  T inside_[Inside]{};
  std::vector<T> more_;  // all of them, where they do not fit inside
  size_t count_ = 0;
};

}  // namespace rdmatx
