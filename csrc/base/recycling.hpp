#pragma once

#include <array>
#include <cstddef>
#include <new>

namespace rdmatx {

/// An allocator for std::allocate_shared: what a thread frees it gets again, without asking the heap. For
/// objects that come and go with every operation. Any thread may free what another allocated.
template <typename T>
class RecyclingAllocator {
 public:
  using value_type = T;
  RecyclingAllocator() noexcept = default;
  template <typename U>
  RecyclingAllocator(const RecyclingAllocator<U>&) noexcept {}  // NOLINT: allocators convert
  friend bool operator==(const RecyclingAllocator&, const RecyclingAllocator&) noexcept { return true; }

  T* allocate(size_t count) {
    if (count == 1 && !gone && spare().count > 0) return static_cast<T*>(spare().blocks[--spare().count]);
    return static_cast<T*>(::operator new(count * sizeof(T)));
  }
  void deallocate(T* block, size_t count) noexcept {
    if (count == 1 && !gone && spare().count < most)
      spare().blocks[spare().count++] = block;
    else
      ::operator delete(block);
  }

 private:
  static constexpr size_t most = 64;
  struct Spare {
    std::array<void*, most> blocks;
    size_t count = 0;
    ~Spare() {
      gone = true;
      while (count > 0) ::operator delete(blocks[--count]);
    }
  };
  static Spare& spare() {
    static thread_local Spare blocks;
    return blocks;
  }
  // At the end of a thread objects may outlive its spare blocks; this needs no destructor, and so is always
  // there.
  static inline thread_local bool gone = false;
};

}  // namespace rdmatx
