#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace rdmatx {

/// A queue that keeps its memory: in steady use it allocates nothing, where std::deque takes and frees a
/// block now and then. Both ends, and the middle for the rare search. Not thread-safe.
template <typename T>
class Ring {
 public:
  bool empty() const noexcept { return count_ == 0; }
  size_t size() const noexcept { return count_; }
  T& operator[](size_t index) noexcept { return places_[(first_ + index) & mask()]; }
  const T& operator[](size_t index) const noexcept { return places_[(first_ + index) & mask()]; }
  T& front() noexcept { return (*this)[0]; }
  const T& front() const noexcept { return (*this)[0]; }
  T& back() noexcept { return (*this)[count_ - 1]; }

  void push_back(T value) {
    if (count_ == places_.size()) grow();
    ++count_;
    back() = std::move(value);
  }
  void push_front(T value) {
    if (count_ == places_.size()) grow();
    first_ = (first_ + mask()) & mask();
    ++count_;
    front() = std::move(value);
  }
  /// What it held is let go at once.
  void pop_front() {
    front() = T{};
    first_ = (first_ + 1) & mask();
    --count_;
  }
  void clear() {
    while (!empty()) pop_front();
  }
  template <typename Use>
  void for_each(Use use) {
    for (size_t i = 0; i < count_; ++i) use((*this)[i]);
  }
  /// Removes what `unwanted` accepts, and returns how many those were.
  template <typename Unwanted>
  size_t erase_if(Unwanted unwanted) {
    size_t kept = 0;
    for (size_t i = 0; i < count_; ++i) {
      if (unwanted((*this)[i])) continue;
      if (kept != i) (*this)[kept] = std::move((*this)[i]);
      ++kept;
    }
    const size_t erased = count_ - kept;
    for (size_t i = kept; i < count_; ++i) (*this)[i] = T{};
    count_ = kept;
    return erased;
  }

 private:
  size_t mask() const noexcept { return places_.size() - 1; }  // a power of two
  void grow() {
    std::vector<T> larger(places_.empty() ? 8 : places_.size() * 2);
    for (size_t i = 0; i < count_; ++i) larger[i] = std::move((*this)[i]);
    places_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> places_;
  size_t first_ = 0;
  size_t count_ = 0;
};

}  // namespace rdmatx
