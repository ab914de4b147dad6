#include "messaging/establish.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "messaging/rail_pairing.hpp"

namespace rdmatx {

namespace {

RailRecord describe_rail(const Rail& rail, bool same_host_only, bool alone) {
  const Device& device = *rail.device();
  const DeviceLimits& limits = device.attributes().limits;
  RailRecord record;
  record.provider = device.attributes().provider;
  record.device = device.name();
  try {
    record.candidates = gather_candidates(device);
  } catch (const UnavailableError& error) {
    if (alone) throw;
    log(LogLevel::warning, std::string("a connection goes without one of its rails: ") + error.what());
    return record;
  }
  record.max_rd_atomic =
      static_cast<uint8_t>(std::clamp(std::min(limits.max_qp_rd_atom, limits.max_qp_init_rd_atom), 0, 16));
  const double gigabits = device.query_port(record.candidates.front().port).gigabits_per_second;
  record.megabits_per_second = static_cast<uint32_t>(std::max(1.0, gigabits * 1000));
  record.same_host_only = same_host_only;
  return record;
}

}  // namespace

Endpoint::Endpoint(std::shared_ptr<ContextResources> resources)
    : resources_(std::move(resources)), channels_(resources_->rails.size()) {
  record_.host_id = host_id();
  record_.process_id = static_cast<uint32_t>(::getpid());
  record_.slots = ProtocolSizes::slots;
  record_.slot_bytes = ProtocolSizes::slot_bytes;
  record_.verify = resources_->verify;
  for (const Rail& rail : resources_->rails)
    record_.rails.push_back(
        describe_rail(rail, &rail == resources_->same_host_rail(), resources_->rails.size() == 1));
}

void Endpoint::create_channel(size_t rail) {
  const Rail& of = resources_->rails[rail];
  channels_[rail] = std::make_unique<Channel>(of.domain, of.events);
  RailRecord& record = record_.rails[rail];
  const GidCandidate& first = record.candidates.front();
  const Address own = channels_[rail]->local_address(first.port, first.index);
  record.queue_pair_number = own.queue_pair_number;
  record.packet_sequence_number = own.packet_sequence_number;
}

const HandshakeRecord& Endpoint::offer() {
  for (size_t rail = 0; rail < channels_.size(); ++rail)
    if (!record_.rails[rail].candidates.empty()) create_channel(rail);
  return record_;
}

void Endpoint::check_peer(const HandshakeRecord& peer) const {
  if (peer.slot_bytes != record_.slot_bytes)
    throw UnavailableError("the two sides' message slots differ (" + std::to_string(record_.slot_bytes) +
                           " and " + std::to_string(peer.slot_bytes) +
                           " bytes): install the same rdmatx on both");
}

HandshakeRecord Endpoint::answer(const HandshakeRecord& hello) {
  is_listener_ = true;
  check_peer(hello);
  const bool same_host = hello.host_id == record_.host_id;
  const std::vector<RailChoice> choices = pair_rails(record_.rails, hello.rails, same_host);
  if (choices.empty()) throw UnavailableError(explain_no_rails(record_.rails, hello.rails, same_host));
  for (const RailChoice& choice : choices) create_channel(choice.listener_rail);
  connect(hello, choices);
  HandshakeRecord accept = record_;
  accept.choices = choices;
  return accept;
}

void Endpoint::conclude(const HandshakeRecord& accept) {
  check_peer(accept);
  bool sensible = !accept.choices.empty();
  for (const RailChoice& choice : accept.choices)
    sensible = sensible && choice.connector_rail < channels_.size() && channels_[choice.connector_rail] &&
               choice.listener_rail < accept.rails.size() &&
               choice.connector_candidate < record_.rails[choice.connector_rail].candidates.size() &&
               choice.listener_candidate < accept.rails[choice.listener_rail].candidates.size();
  if (!sensible)
    throw UnavailableError(
        "the listener chose an address that nobody has: install the same rdmatx on both sides");
  connect(accept, accept.choices);
}

void Endpoint::connect(const HandshakeRecord& peer, const std::vector<RailChoice>& choices) {
  peer_slots_ = peer.slots;
  verify_ = record_.verify || peer.verify;
  for (const RailChoice& choice : choices) {
    const size_t mine = is_listener_ ? choice.listener_rail : choice.connector_rail;
    const size_t theirs = is_listener_ ? choice.connector_rail : choice.listener_rail;
    if (!channels_[mine])
      throw UnavailableError("the listener chose a rail twice: install the same rdmatx on both sides");
    const RailRecord& own = record_.rails[mine];
    const RailRecord& other = peer.rails[theirs];
    Lane lane;
    lane.rail = resources_->rails[mine];
    lane.remote_rail = theirs;
    lane.weight = std::min(own.megabits_per_second, std::max(1u, other.megabits_per_second));
    lane.max_rd_atomic = std::min(own.max_rd_atomic, other.max_rd_atomic);
    lane.path.local = own.candidates[is_listener_ ? choice.listener_candidate : choice.connector_candidate];
    lane.path.remote =
        other.candidates[is_listener_ ? choice.connector_candidate : choice.listener_candidate];
    lane.path.provider = own.provider;
    lane.path.device = own.device;
    lane.path.reason = choice.reason;
    lane.path.max_message_bytes = lane.rail.device()->query_port(lane.path.local.port).max_message_bytes;
    lane.channel = std::move(channels_[mine]);
    lane.channel->connect(address_of(lane.path.local, own.queue_pair_number, own.packet_sequence_number),
                          address_of(lane.path.remote, other.queue_pair_number, other.packet_sequence_number),
                          lane.max_rd_atomic);
    lanes_.push_back(std::move(lane));
  }
  channels_.clear();
}

std::shared_ptr<Connection> Endpoint::finish(BootstrapSocket socket, std::string peer) {
  ConnectionParts parts{std::move(lanes_), std::move(socket), peer_slots_,
                        std::move(peer),   verify_,           is_listener_};
  return Connection::create(*resources_, std::move(parts));
}

namespace {

// The next record, which is to be of this kind; a refusal is raised in its own words.
BootstrapSocket::Record expect(BootstrapSocket& socket, RecordKind kind, const Deadline& deadline,
                               const std::string& address) {
  BootstrapSocket::Record record = socket.receive(deadline, address);
  if (record.head.kind == kind) return record;
  if (record.head.kind == RecordKind::denied)
    throw AuthenticationError(address + " refused the connection: " + decode_text(record.body), address);
  if (record.head.kind == RecordKind::refuse)
    throw UnavailableError(address + " refused the connection: " + decode_text(record.body));
  throw UnavailableError("handshake with " + address + " failed: an unexpected record came");
}

// The listener proves the secret first. This side's proof is the seal of its hello, which comes next.
void authenticate(BootstrapSocket& socket, const Secret& secret, const Deadline& deadline,
                  const std::string& address) {
  const Nonce nonce = random_nonce();
  socket.send(encode_greeting(nonce), deadline, address);
  const auto challenge = decode_challenge(expect(socket, RecordKind::challenge, deadline, address).body);
  if (!challenge)
    throw UnavailableError("handshake with " + address + " failed: its challenge has a wrong length");
  const SessionKeys keys(secret, nonce, challenge->nonce);
  if (!equal_in_constant_time(challenge->proof, keys.proof())) {
    socket.refuse("the secrets of the two sides differ", RecordKind::denied);
    throw AuthenticationError("the secret of " + address +
                                  " is not this side's: give both the same one (secret=..., or RDMATX_SECRET "
                                  "in the environment)",
                              address);
  }
  socket.protect(RecordSeal(keys, Side::connector));
}

}  // namespace

std::shared_ptr<Connection> establish(const std::shared_ptr<ContextResources>& resources,
                                      const std::string& address, const SharedSecret& secret,
                                      const Deadline& deadline) {
  // Before the socket, so that a listener is not kept waiting: it gives quiet ones up where many knock.
  Endpoint endpoint(resources);
  const HandshakeRecord& hello = endpoint.offer();
  BootstrapSocket socket = BootstrapSocket::connect(address, deadline);
  if (secret) authenticate(socket, *secret, deadline, address);
  socket.send(encode(RecordKind::hello, hello), deadline, address);
  RecordProblem problem;
  const auto accept = decode_handshake(expect(socket, RecordKind::accept, deadline, address).body, problem);
  if (!accept) throw UnavailableError("handshake with " + address + " failed: " + problem.text);
  endpoint.conclude(*accept);
  socket.send(encode(RecordKind::ready), deadline, address);
  return endpoint.finish(std::move(socket), address);
}

}  // namespace rdmatx
