#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/call.hpp"
#include "messaging/context.hpp"

namespace rdmatx {

/// Who belongs to a group, and how they are reached.
struct GroupSettings {
  int rank = 0;
  /// Of every rank's listener, by rank.
  std::vector<std::string> addresses;
  /// Seconds a collective may take where nothing else is said.
  double timeout = 60;
  SharedSecret secret;
  /// The same on all ranks.
  TuningTable tuning;

  int world() const noexcept { return static_cast<int>(addresses.size()); }
};

enum class WordKind : uint8_t {
  hello = 1,     ///< the first on a connection: who this is
  call = 2,      ///< a collective begins: its CallRecord
  leaving = 3,   ///< this rank closes the group; nothing has failed
  lost = 4,      ///< from here on the group has failed: `rank` is gone
  late = 5,      ///< `rank` ran out of time
  mismatch = 6,  ///< ranks called different things
  aborted = 7,   ///< `rank` ended the group
  broken = 8,    ///< an operation of `rank` failed
};

/// What ranks tell each other beside their data.
struct Word {
  WordKind kind = WordKind::hello;
  int rank = 0;  ///< whom it is about
  CallRecord call;
  std::string text;
};

/// The connections of a group's rank to the others, made when they are first needed: the higher rank of two
/// connects, the lower one accepts. Each carries words beside the data of collectives; the tags of both have
/// their highest bit set.
///
/// Owns the listener and the connections. Used under the lock of its engine; only connect() waits.
class Members {
 public:
  Members(std::shared_ptr<Context> context, std::shared_ptr<Listener> listener, GroupSettings settings);

  int rank() const noexcept { return settings_.rank; }
  int world() const noexcept { return settings_.world(); }
  const GroupSettings& settings() const noexcept { return settings_; }
  /// "rank 2 (10.0.0.2:41234)".
  std::string name(int rank) const;
  bool connected(int rank) const noexcept { return static_cast<bool>(member(rank).connection); }
  /// Null where it is not connected.
  const std::shared_ptr<Connection>& connection(int rank) const noexcept { return member(rank).connection; }
  bool has_left(int rank) const noexcept { return member(rank).left; }

  /// Connects to a lower rank, which waits; a higher one comes by itself. An attempt takes half a second at
  /// most, and longer each time: where connected() is still false, call it again. Throws PeerLostError that
  /// names the rank, AuthenticationError.
  void connect(int rank, double seconds);
  /// Takes in who came; true where somebody is connected that was not before.
  bool accept();
  /// Starts a send to a rank that is connected.
  std::shared_ptr<Request> send(int rank, const OperationMemory& memory, uint64_t tag);
  /// Lets all connections make progress.
  bool progress() noexcept;

  /// Hands what was heard to `word(from, word)`, and connections that ended to `end(rank, why)`.
  void hear(const std::function<void(int, const Word&)>& word,
            const std::function<void(int, const std::exception_ptr&)>& end);
  /// Says it, if there is a way; never waits. Null where there was none.
  std::shared_ptr<Request> say(int rank, const Word& word) noexcept;
  std::vector<std::shared_ptr<Request>> say_all(const Word& word);

  /// Looks whether they live.
  void check_all() noexcept;
  bool wants_polling() const noexcept;
  /// Gives the connections up, to be closed.
  std::vector<std::shared_ptr<Connection>> release();
  void close_listener();

 private:
  /// A connection with a receive for the next word posted.
  struct Member {
    std::shared_ptr<Connection> connection;
    std::shared_ptr<Request> listening;
    std::shared_ptr<std::vector<std::byte>> heard;
    double patience = 0.5;  // seconds of the next attempt to connect
    bool left = false;
    bool ended = false;
  };

  const Member& member(int rank) const noexcept { return members_[static_cast<size_t>(rank)]; }
  void listen(Member& member);
  bool take_hello(Member& stranger);
  std::vector<std::byte> encode(const Word& word) const;
  bool decode(const Member& from, Word& word) const;

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Listener> listener_;
  const GroupSettings settings_;
  const uint64_t id_;  // of the group, the same on all its ranks
  std::vector<Member> members_;
  std::vector<Member> strangers_;  // came, and did not say yet who they are
};

}  // namespace rdmatx
