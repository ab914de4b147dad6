#pragma once

#include <unistd.h>

#include <bit>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace rdmatx {

/// Pieces of memory that nobody uses now, by size class, so that the next one of that size need not be
/// mapped, faulted in and registered again. Holds at most `limit` bytes and `most` pieces; beyond that those
/// that have lain longest fall out.
///
/// Any thread; a leaf lock, under which nothing is freed: what falls out is handed to the caller. Of the
/// process that made it alone: in a forked child it neither takes nor gives, since its pieces may be shared
/// with the parent and its lock may be held by a thread that is not there.
template <typename T>
class SizeClassPool {
 public:
  SizeClassPool(size_t limit, size_t most) : limit_(limit), most_(most) {}

  /// The size to make a piece of at least `bytes`: whole pages, and eight classes from one power of two to
  /// the next, so that at most an eighth is to spare.
  static size_t class_of(size_t bytes) noexcept {
    constexpr size_t page = 4096;
    if (bytes <= 8 * page) return bytes == 0 ? page : (bytes + page - 1) / page * page;
    const size_t step = std::bit_floor(bytes) / 8;
    return (bytes + step - 1) / step * step;
  }

  /// The piece of this class that was given last.
  std::optional<T> take(size_t size_class) {
    if (forked()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->first != size_class) continue;
      T piece = std::move(entry->second);
      held_ -= size_class;
      entries_.erase(entry);
      return piece;
    }
    return std::nullopt;
  }

  /// Gives a piece back; what has no room any more is returned, perhaps the piece itself.
  std::vector<T> give(size_t size_class, T piece) {
    std::vector<T> out;
    if (forked() || size_class > limit_) {
      out.push_back(std::move(piece));
      return out;
    }
    const std::lock_guard lock(mutex_);
    entries_.emplace_front(size_class, std::move(piece));
    held_ += size_class;
    while (held_ > limit_ || entries_.size() > most_) out.push_back(drop_oldest());
    return out;
  }

  /// Everything it holds.
  std::vector<T> clear() {
    std::vector<T> out;
    if (forked()) return out;
    const std::lock_guard lock(mutex_);
    while (!entries_.empty()) out.push_back(drop_oldest());
    return out;
  }

  bool forked() const noexcept { return getpid() != process_; }

 private:
  T drop_oldest() {
    T piece = std::move(entries_.back().second);
    held_ -= entries_.back().first;
    entries_.pop_back();
    return piece;
  }

  const pid_t process_ = getpid();
  const size_t limit_;
  const size_t most_;
  std::mutex mutex_;
  std::list<std::pair<size_t, T>> entries_;  // the last given first
  size_t held_ = 0;
};

}  // namespace rdmatx
