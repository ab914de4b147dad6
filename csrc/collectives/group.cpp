#include "collectives/group.hpp"

#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "collectives/engine.hpp"
#include "collectives/operation.hpp"
#include "collectives/reduction.hpp"
#include "gpu/buffer.hpp"

namespace rdmatx {
namespace {

constexpr size_t most_schedules = 256;

void check_size(const Call& call, const char* what, uint64_t bytes, uint64_t elements) {
  const uint64_t wanted = elements * element_bytes(call.type);
  if (bytes == wanted) return;
  throw UsageError(describe(call) + ": " + what + " has " + std::to_string(bytes) + " bytes, and " +
                   std::to_string(elements) + " elements of " + data_type_name(call.type) + " take " +
                   std::to_string(wanted));
}

bool overlap(const OperationMemory& one, const OperationMemory& other) noexcept {
  const auto* a = static_cast<const std::byte*>(one.data);
  const auto* b = static_cast<const std::byte*>(other.data);
  return one.bytes > 0 && other.bytes > 0 && a < b + other.bytes && b < a + one.bytes;
}

// In place as torch has it: the whole input, or this rank's block.
bool is_in_place(const Call& call, const OperationMemory& input, const OperationMemory& output, int rank) {
  uint64_t before = 0;
  for (int i = 0; i < rank; ++i)
    before += call.counts.empty() ? call.count : call.counts[static_cast<size_t>(i)];
  before *= element_bytes(call.type);
  const auto* in = static_cast<const std::byte*>(input.data);
  const auto* out = static_cast<const std::byte*>(output.data);
  switch (call.collective) {
    case Collective::reduce:
      return in == out;
    case Collective::all_gather:
    case Collective::gather:
      return in == out + before;
    case Collective::reduce_scatter:
    case Collective::scatter:
      return out == in + before;
    default:
      return false;
  }
}

OperationMemory copy_of(const OperationMemory& memory) {
  const auto buffer = HostBuffer::create(memory.bytes);
  std::memcpy(buffer->data(), memory.data, memory.bytes);
  return {buffer->data(), memory.bytes, buffer, {}, {}, {}};
}

}  // namespace

void GroupWork::wait(std::optional<double> timeout) const {
  group_->engine_->wait(*pending_, timeout);
}

bool GroupWork::done() const {
  return group_->engine_->done(*pending_);
}

bool GroupWork::finished() const noexcept {
  return pending_->finished();
}

void GroupWork::at_end(std::function<void()> call) const {
  group_->engine_->at_end(*pending_, std::move(call));
}

const std::shared_ptr<Progress>& GroupWork::progress_of_context() const noexcept {
  return group_->progress_of_context();
}

CollectiveWork::CollectiveWork(std::shared_ptr<Group> group, std::shared_ptr<Operation> operation)
    : GroupWork(std::move(group), std::move(operation)) {}

MessageWork::MessageWork(std::shared_ptr<Group> group, std::shared_ptr<Message> message)
    : GroupWork(std::move(group), std::move(message)) {}

const Message& MessageWork::ended_message() const {
  if (!finished()) throw UsageError("the message is still pending: wait() for it first");
  pending().check();
  return static_cast<const Message&>(pending());
}

int MessageWork::peer() const {
  return ended_message().peer();
}

uint64_t MessageWork::bytes() const {
  return ended_message().bytes();
}

std::shared_ptr<Group> Group::create(std::shared_ptr<Context> context, std::shared_ptr<Listener> listener,
                                     GroupSettings settings) {
  check_tuning(settings.tuning);
  auto engine = Engine::create(std::move(context), std::move(listener), settings);
  return std::shared_ptr<Group>(new Group(std::move(engine), std::move(settings)));
}

Group::Group(std::shared_ptr<Engine> engine, GroupSettings settings)
    : engine_(std::move(engine)), settings_(std::move(settings)) {}

Group::~Group() {
  try {
    engine_->close();
  } catch (...) {
    // A Ctrl-C that came while connections lingered; all is closed anyway.
  }
}

void Group::check(const Call& call, const OperationMemory& input, const OperationMemory& output) const {
  if (call.root < 0 || call.root >= world())
    throw UsageError(describe(call) + ": the root is a rank from 0 to " + std::to_string(world() - 1));
  for (const auto* counts : {&call.counts, &call.receive_counts})
    if (!counts->empty() && counts->size() != static_cast<size_t>(world()))
      throw UsageError(describe(call) + ": " + std::to_string(counts->size()) + " counts for " +
                       std::to_string(world()) + " ranks");
  if (input.device || output.device)
    throw UnavailableError(
        describe(call) + ": this version has collectives of the host's memory only; copy to the host first");
  if (call.reduces()) check_reducible(call.type, call.operation);
  check_size(call, "the input", input.bytes, call.input_count(rank(), world()));
  check_size(call, "the output", output.bytes, call.output_count(rank(), world()));
  if (call.collective == Collective::all_to_all) {
    const size_t own = static_cast<size_t>(rank());
    if (!call.counts.empty() && call.counts[own] != call.receive_counts.at(own))
      throw UsageError(describe(call) + ": this rank sends itself " + std::to_string(call.counts[own]) +
                       " elements and wants to receive " + std::to_string(call.receive_counts[own]));
  }
}

std::shared_ptr<const Schedule> Group::schedule_of(const Call& call) {
  ScheduleKey key{static_cast<uint64_t>(call.collective) | static_cast<uint64_t>(call.algorithm) << 8 |
                      static_cast<uint64_t>(element_bytes(call.type)) << 16,
                  call.count, call.chunk_bytes, static_cast<uint64_t>(call.root)};
  key.insert(key.end(), call.counts.begin(), call.counts.end());
  key.insert(key.end(), call.receive_counts.begin(), call.receive_counts.end());
  const std::lock_guard lock(schedules_mutex_);
  const auto found = schedules_.find(key);
  if (found != schedules_.end()) return found->second;
  if (schedules_.size() >= most_schedules) schedules_.clear();
  auto schedule = std::make_shared<const Schedule>(make_schedule(call, rank(), world()));
  schedules_.emplace(std::move(key), schedule);
  return schedule;
}

double Group::seconds_of(const GroupCallOptions& options) const {
  const double seconds = options.timeout.value_or(engine_->timeout());
  Deadline{seconds};  // throws where it is no timeout
  return seconds;
}

CollectiveWork Group::start(Call call, OperationMemory input, OperationMemory output,
                            GroupCallOptions options) {
  check(call, input, output);
  choose_algorithm(call, world(), settings_.tuning);
  const double seconds = seconds_of(options);
  if (overlap(input, output) && !is_in_place(call, input, output, rank())) input = copy_of(input);
  auto schedule = schedule_of(call);
  auto operation = std::make_shared<Operation>(std::move(call), std::move(schedule), std::move(input),
                                               std::move(output), seconds);
  engine_->submit(operation, options.in_background);
  return {shared_from_this(), std::move(operation)};
}

MessageWork Group::send(OperationMemory memory, int to, uint64_t tag, GroupCallOptions options) {
  return start(true, std::move(memory), to, tag, std::move(options));
}

MessageWork Group::receive(OperationMemory memory, std::optional<int> from, uint64_t tag,
                           GroupCallOptions options) {
  if (!from && world() == 1) throw UsageError("recv: there is no other rank in this group");
  if (from && *from < 0) throw UsageError("recv: there is no rank " + std::to_string(*from));
  return start(false, std::move(memory), from.value_or(Message::any_rank), tag, std::move(options));
}

MessageWork Group::start(bool sends, OperationMemory memory, int peer, uint64_t tag,
                         GroupCallOptions options) {
  const std::string name = sends ? "send" : "recv";
  if (peer == rank()) throw UsageError(name + ": rank " + std::to_string(peer) + " is this rank itself");
  if (peer >= world() || (sends && peer < 0))
    throw UsageError(name + ": there is no rank " + std::to_string(peer) + " in a group of " +
                     std::to_string(world()));
  if (tag >= Message::tag_limit) throw UsageError(name + ": a tag is a number below 2**63");
  if (memory.device)
    throw UnavailableError(
        name + ": this version has messages of a group of the host's memory only; copy to the host first");
  auto message = std::make_shared<Message>(sends ? Message::Kind::send : Message::Kind::receive, peer, tag,
                                           std::move(memory), seconds_of(options));
  engine_->submit(message, options.in_background);
  return {shared_from_this(), std::move(message)};
}

void Group::run(Call call, OperationMemory input, OperationMemory output, std::optional<double> timeout) {
  start(std::move(call), std::move(input), std::move(output), {timeout, false}).wait(std::nullopt);
}

void Group::abort(const std::string& reason) {
  engine_->abort(reason);
}

std::exception_ptr Group::failure() const {
  return engine_->failure();
}

void Group::set_timeout(double seconds) {
  engine_->set_timeout(seconds);
}

double Group::timeout() const {
  return engine_->timeout();
}

uint64_t Group::sequence() const {
  return engine_->sequence();
}

void Group::close() {
  engine_->close();
}

bool Group::closed() const noexcept {
  return engine_->closed();
}

const std::shared_ptr<Progress>& Group::progress_of_context() const noexcept {
  return engine_->progress_of_context();
}

}  // namespace rdmatx
