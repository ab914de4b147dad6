#include "collectives/members.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"

namespace rdmatx {
namespace {

constexpr uint64_t word_tag = uint64_t{1} << 63;
constexpr size_t longest_word = 2048;

struct WordHead {
  uint64_t group = 0;
  int32_t rank = 0;
  WordKind kind = WordKind::hello;
  uint8_t reserved[3] = {};
};
static_assert(sizeof(WordHead) == 16);

uint64_t id_of(const std::vector<std::string>& addresses) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::string& address : addresses)
    for (const char letter : address + ",")
      hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  return hash;
}

OperationMemory memory_of(const std::shared_ptr<std::vector<std::byte>>& bytes) {
  return {bytes->data(), bytes->size(), bytes, {}, {}, {}};
}

}  // namespace

Members::Members(std::shared_ptr<Context> context, std::shared_ptr<Listener> listener, GroupSettings settings)
    : context_(std::move(context)),
      listener_(std::move(listener)),
      settings_(std::move(settings)),
      id_(id_of(settings_.addresses)),
      members_(settings_.addresses.size()) {
  if (settings_.rank < 0 || settings_.rank >= world())
    throw UsageError("rank " + std::to_string(settings_.rank) + " in a group of " + std::to_string(world()) +
                     ": ranks count from 0");
}

std::string Members::name(int rank) const {
  return "rank " + std::to_string(rank) + " (" + settings_.addresses[static_cast<size_t>(rank)] + ")";
}

void Members::connect(int rank, double seconds) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (member.connection || rank >= settings_.rank || member.ended) return;
  try {
    member.connection = context_->connect(settings_.addresses[static_cast<size_t>(rank)],
                                          std::min(seconds, member.patience), settings_.secret);
  } catch (const PeerLostError& error) {
    throw PeerLostError("cannot connect to " + name(rank) + ": " + error.what(), name(rank));
  } catch (const TimeoutError&) {
    member.patience *= 2;
    return;
  }
  listen(member);
  say(rank, {WordKind::hello, settings_.rank, {}, {}});
}

bool Members::accept() {
  while (listener_->stats().waiting > 0) {
    const auto connection = listener_->try_accept();
    if (!connection) break;
    Member stranger;
    stranger.connection = connection;
    listen(stranger);
    strangers_.push_back(std::move(stranger));
  }
  bool came = false;
  for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
    stranger->connection->progress();
    if (!stranger->listening->finished()) {
      ++stranger;
      continue;
    }
    came |= take_hello(*stranger);
    stranger = strangers_.erase(stranger);
  }
  return came;
}

bool Members::take_hello(Member& stranger) {
  Word word;
  if (stranger.listening->succeeded() && decode(stranger, word) && word.kind == WordKind::hello &&
      word.rank > settings_.rank && word.rank < world()) {
    Member& member = members_[static_cast<size_t>(word.rank)];
    if (!member.connection && !member.ended) {
      member = std::move(stranger);
      listen(member);
      return true;
    }
  }
  log(LogLevel::info, "a group refused " + stranger.connection->peer() + ": it is no rank of it");
  return false;
}

bool Members::progress() noexcept {
  bool progressed = false;
  for (const Member& member : members_)
    if (member.connection && !member.ended) progressed |= member.connection->progress();
  return progressed;
}

void Members::listen(Member& member) {
  if (!member.heard) member.heard = std::make_shared<std::vector<std::byte>>(longest_word);
  member.listening = member.connection->ireceive(memory_of(member.heard), word_tag);
}

void Members::hear(const std::function<void(int, const Word&)>& word,
                   const std::function<void(int, const std::exception_ptr&)>& end) {
  for (int rank = 0; rank < world(); ++rank) {
    Member& from = members_[static_cast<size_t>(rank)];
    while (from.connection && !from.ended && from.listening->finished()) {
      std::exception_ptr over;
      Word heard;
      bool sound = false;
      try {
        from.listening->check();
        sound = decode(from, heard);
        if (sound && heard.kind == WordKind::leaving) from.left = true;
        listen(from);
      } catch (...) {
        over = std::current_exception();
      }
      // A last word may have come whole before the connection ended: it tells why.
      if (sound) word(rank, heard);
      if (!over) continue;
      from.ended = true;
      end(rank, over);
    }
  }
}

std::vector<std::byte> Members::encode(const Word& word) const {
  WordHead head{id_, word.rank, word.kind, {}};
  const std::string text = word.text.substr(0, longest_word - sizeof head - sizeof word.call);
  std::vector<std::byte> bytes(sizeof head + sizeof word.call + text.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, &word.call, sizeof word.call);
  std::memcpy(bytes.data() + sizeof head + sizeof word.call, text.data(), text.size());
  return bytes;
}

bool Members::decode(const Member& from, Word& word) const {
  WordHead head;
  const uint64_t bytes = from.listening->bytes();
  if (bytes < sizeof head + sizeof word.call || bytes > from.heard->size()) return false;
  std::memcpy(&head, from.heard->data(), sizeof head);
  if (head.group != id_ || head.rank < 0 || head.rank >= world()) return false;
  if (head.kind < WordKind::hello || head.kind > WordKind::broken) return false;
  word.kind = head.kind;
  word.rank = head.rank;
  std::memcpy(&word.call, from.heard->data() + sizeof head, sizeof word.call);
  if (word.call.collective > Collective::barrier || word.call.type > DataType::float8 ||
      word.call.operation > ReduceOperation::premul_sum || word.call.algorithm > Algorithm::chain)
    return false;
  const auto* text = reinterpret_cast<const char*>(from.heard->data()) + sizeof head + sizeof word.call;
  word.text.assign(text, bytes - sizeof head - sizeof word.call);
  return true;
}

std::shared_ptr<Request> Members::send(int rank, const OperationMemory& memory, uint64_t tag) {
  Connection& to = *member(rank).connection;
  try {
    return to.isend(memory, tag);
  } catch (const SizeMismatchError& earlier) {
    // A small message sent before did not fit its receive: that send is long over, and the rank that received
    // has the error. Nothing was sent now.
    log(LogLevel::warning, "group, rank " + std::to_string(settings_.rank) + ": " + earlier.what());
    return to.isend(memory, tag);
  }
}

std::shared_ptr<Request> Members::say(int rank, const Word& word) noexcept {
  const Member& to = member(rank);
  if (!to.connection || to.ended) return nullptr;
  try {
    auto bytes = std::make_shared<std::vector<std::byte>>(encode(word));
    return send(rank, memory_of(bytes), word_tag);
  } catch (const std::exception& error) {
    // Whoever hears nothing sees the end of the connection.
    log(LogLevel::debug, "a word to " + name(rank) + " was not sent: " + error.what());
  }
  return nullptr;
}

std::vector<std::shared_ptr<Request>> Members::say_all(const Word& word) {
  std::vector<std::shared_ptr<Request>> said;
  for (int rank = 0; rank < world(); ++rank)
    if (auto request = say(rank, word)) said.push_back(std::move(request));
  return said;
}

void Members::check_all() noexcept {
  for (const Member& member : members_)
    if (member.connection && !member.ended) member.connection->check_peer();
}

bool Members::wants_polling() const noexcept {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.connection && member.connection->wants_polling();
  });
}

std::vector<std::shared_ptr<Connection>> Members::release() {
  std::vector<std::shared_ptr<Connection>> all;
  for (auto* list : {&members_, &strangers_}) {
    for (Member& member : *list) {
      if (member.connection) all.push_back(std::move(member.connection));
      member.connection.reset();
      member.ended = true;
    }
  }
  strangers_.clear();
  return all;
}

void Members::close_listener() {
  listener_->close();
}

}  // namespace rdmatx
