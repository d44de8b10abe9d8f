#include "transport/handshake.h"

#include <algorithm>
#include <cstdio>

#include "common/base/refusal.h"
#include "common/base/version.h"
#include "transport/stranger_budget.h"

namespace centroid::transport {
namespace {

Error malformed(std::string_view what) {
  return Error(ErrorCode::kInvalidArgument, "malformed " + std::string(what));
}

std::string range(const Greeting& greeting) {
  return std::to_string(greeting.min_version) + ".." + std::to_string(greeting.max_version);
}

std::string hex(std::uint64_t number) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

void put_limits(ByteWriter& out, const FrameLimits& limits, std::uint64_t credit) {
  out.put(limits.max_head_bytes);
  out.put(limits.max_payload_bytes);
  out.put(credit);
}

void get_limits(ByteReader& in, FrameLimits& limits, std::uint64_t& credit) {
  limits.max_head_bytes = in.get<std::uint32_t>();
  limits.max_payload_bytes = in.get<std::uint64_t>();
  credit = in.get<std::uint64_t>();
}

FrameLimits smaller(const FrameLimits& a, const FrameLimits& b) {
  FrameLimits out;
  out.max_head_bytes = std::min(a.max_head_bytes, b.max_head_bytes);
  out.max_payload_bytes = std::min(a.max_payload_bytes, b.max_payload_bytes);
  return out;
}

FrameLimits greeting_limits() {
  FrameLimits out;
  out.max_head_bytes = kMaxGreetingBytes - static_cast<std::uint32_t>(kFrameHeaderBytes);
  out.max_payload_bytes = 0;
  return out;
}

Status check_limits(const FrameLimits& limits) {
  if (limits.max_head_bytes < kMinHeadLimit)
    return Error(ErrorCode::kInvalidArgument,
                 "limits.max_head_bytes is " + std::to_string(limits.max_head_bytes) +
                     ", at least " + std::to_string(kMinHeadLimit) + " is needed");
  return {};
}

Status check_text(std::string_view field, std::size_t size, std::size_t limit) {
  if (size <= limit) return {};
  return Error(ErrorCode::kInvalidArgument, "greeting." + std::string(field) + " has " +
                                                std::to_string(size) + " bytes, at most " +
                                                std::to_string(limit) + " are sent");
}

/// Whether a frame may be the handshake's `name`, by kind, flags and id.
Status check_frame(const FrameHeader& header, std::string_view name, std::uint16_t kind,
                   std::uint32_t flags, const std::string& from) {
  const auto wrong = [&](std::string_view field, std::uint64_t is, std::uint64_t expected) {
    return Error(ErrorCode::kFailedPrecondition, "expected a " + std::string(name) + " from " +
                                                     from + ", got a frame with " +
                                                     std::string(field) + " " + std::to_string(is) +
                                                     ", not " + std::to_string(expected));
  };
  constexpr std::uint32_t kKnown = kFlagRequest | kFlagResponse | kFlagError;
  if (header.kind != kind) return wrong("kind", header.kind, kind);
  if ((header.flags & kKnown) != flags) return wrong("flags", header.flags & kKnown, flags);
  if (header.id != 0) return wrong("id", header.id, 0);
  return {};
}

bool is_known(const Greeting& ours, const Greeting& theirs) {
  return ours.token.empty() || is_same_secret(ours.token, theirs.token) ||
         (ours.also_accepts && ours.also_accepts(theirs.token));
}

Status check_role(const Greeting& ours, const Greeting& theirs, const std::string& refusal) {
  const std::vector<std::string>& roles = ours.accepts_roles;
  if (roles.empty() || std::ranges::find(roles, theirs.role) != roles.end()) return {};
  std::string known;
  for (const std::string& role : roles) known += (known.empty() ? "\"" : ", \"") + role + "\"";
  return Error(ErrorCode::kFailedPrecondition, refusal + ": its role is \"" +
                                                   shortened(theirs.role, kMaxRoleBytes) +
                                                   "\", not one of " + known);
}

enum class RefusalKind : std::uint8_t { kNotLeader = 1, kNotReady = 2, kVersionMismatch = 3 };

std::vector<std::byte> encode_refusal(const Error& error) {
  ByteWriter out;
  if (const auto* const not_leader = refusal_of<NotLeader>(error)) {
    out.put(RefusalKind::kNotLeader);
    out.put_string(std::string_view(not_leader->endpoint).substr(0, kMaxEndpointBytes));
  } else if (refusal_of<NotReady>(error) != nullptr) {
    out.put(RefusalKind::kNotReady);
  } else if (const auto* const mismatch = refusal_of<VersionMismatch>(error)) {
    out.put(RefusalKind::kVersionMismatch);
    for (const auto& side : {mismatch->mine, mismatch->yours}) {
      out.put(side.oldest);
      out.put(side.newest);
    }
  }
  return out.take();
}

/// Nothing for a kind that a later release has added: its bytes are skipped.
std::optional<Refusal> decode_refusal(ByteReader& in) {
  switch (in.get<RefusalKind>()) {
    case RefusalKind::kNotLeader:
      return Refusal{NotLeader{in.get_string(kMaxEndpointBytes)}};
    case RefusalKind::kNotReady:
      return Refusal{NotReady{}};
    case RefusalKind::kVersionMismatch: {
      VersionMismatch mismatch;
      for (auto* const side : {&mismatch.mine, &mismatch.yours}) {
        side->oldest = in.get<std::uint16_t>();
        side->newest = in.get<std::uint16_t>();
      }
      return Refusal{mismatch};
    }
  }
  in.get_bytes(in.left());
  return std::nullopt;
}

/// Send the refusal; the caller closes. The peer receives the text of our own log.
Task<Error> refuse(Connection& connection, std::uint64_t id, Error why) {
  const std::vector<std::byte> head = encode_error(why);
  OutFrame frame;
  frame.kind = kHelloReply;
  frame.flags = kFlagResponse | kFlagError;
  frame.id = id;
  frame.head = head;
  (void)co_await connection.write(frame);
  co_return why;
}

}  // namespace

Status check_greeting(const Greeting& greeting) {
  CENTROID_TRY(check_text("role", greeting.role.size(), kMaxRoleBytes));
  CENTROID_TRY(check_text("name", greeting.name.size(), kMaxNameBytes));
  CENTROID_TRY(check_text("run_id", greeting.run_id.size(), kMaxRunIdBytes));
  CENTROID_TRY(check_text("token", greeting.token.size(), kMaxTokenBytes));
  if (greeting.min_version > greeting.max_version)
    return Error(ErrorCode::kInvalidArgument,
                 "greeting.min_version above max_version: " + range(greeting));
  return check_limits(greeting.limits);
}

std::vector<std::byte> encode_hello(const Greeting& greeting) {
  ByteWriter out;
  out.put(greeting.min_version);
  out.put(greeting.max_version);
  put_limits(out, greeting.limits, greeting.credit_bytes);
  out.put(greeting.manifest_hash);
  out.put_string(greeting.role);
  out.put_string(greeting.name);
  out.put_string(greeting.run_id);
  out.put_string(greeting.token);
  return out.take();
}

Result<Greeting> decode_hello(Bytes head) {
  ByteReader in(head);
  Greeting out;
  out.min_version = in.get<std::uint16_t>();
  out.max_version = in.get<std::uint16_t>();
  get_limits(in, out.limits, out.credit_bytes);
  out.manifest_hash = in.get<std::uint64_t>();
  out.role = in.get_string(kMaxRoleBytes);
  out.name = in.get_string(kMaxNameBytes);
  out.run_id = in.get_string(kMaxRunIdBytes);
  out.token = in.get_string(kMaxTokenBytes);
  const bool may_have_more = out.max_version > kWireVersion;
  if (!in.ok() || (in.left() != 0 && !may_have_more)) return malformed("Hello");
  if (out.min_version > out.max_version) return malformed("Hello: versions " + range(out));
  CENTROID_TRY(check_limits(out.limits));
  return out;
}

std::vector<std::byte> encode_welcome(const Welcome& welcome) {
  ByteWriter out;
  out.put(welcome.version);
  put_limits(out, welcome.limits, welcome.credit_bytes);
  out.put_string(welcome.role);
  out.put_string(welcome.name);
  out.put_string(welcome.run_id);
  return out.take();
}

Result<Welcome> decode_welcome(Bytes head) {
  ByteReader in(head);
  Welcome out;
  out.version = in.get<std::uint16_t>();
  get_limits(in, out.limits, out.credit_bytes);
  out.role = in.get_string(kMaxRoleBytes);
  out.name = in.get_string(kMaxNameBytes);
  out.run_id = in.get_string(kMaxRunIdBytes);
  if (!in.ok() || (in.left() != 0 && out.version <= kWireVersion)) return malformed("HelloReply");
  CENTROID_TRY(check_limits(out.limits));
  return out;
}

std::vector<std::byte> encode_credit(std::uint64_t bytes) {
  ByteWriter out;
  out.put(bytes);
  return out.take();
}

Result<std::uint64_t> decode_credit(Bytes head) {
  ByteReader in(head);
  const auto bytes = in.get<std::uint64_t>();
  if (!in.done() || bytes == 0) return malformed("Credit");
  return bytes;
}

std::vector<std::byte> encode_error(const Error& error, std::size_t room) {
  std::vector<std::byte> refusal = encode_refusal(error);
  constexpr std::size_t kFixedBytes = 5;
  if (kFixedBytes + refusal.size() > room) refusal.clear();
  room = std::min(room - kFixedBytes - refusal.size(), kMaxErrorBytes);
  ByteWriter out;
  out.put(error.code());
  out.put_string(std::string_view(error.message()).substr(0, room));
  out.put_bytes(refusal);
  return out.take();
}

Error decode_error(Bytes head) {
  ByteReader in(head);
  const auto code = in.get<std::uint8_t>();
  std::string message = in.get_string(kMaxErrorBytes);
  auto refusal = in.left() > 0 ? decode_refusal(in) : std::nullopt;
  if (!in.done()) return Error(ErrorCode::kDataLoss, "the peer sent an error that cannot be read");
  if (code < static_cast<std::uint8_t>(ErrorCode::kUnavailable) ||
      code > static_cast<std::uint8_t>(ErrorCode::kInternal))
    return Error(ErrorCode::kInternal,
                 "error code " + std::to_string(code) + " unknown here: " + message);
  Error error(static_cast<ErrorCode>(code), std::move(message));
  return refusal ? std::move(error).with_refusal(*std::move(refusal)) : error;
}

bool is_same_secret(std::string_view expected, std::string_view offered) {
  if (expected.empty()) return offered.empty();
  std::size_t difference = expected.size() ^ offered.size();
  for (std::size_t i = 0; i < offered.size(); ++i) {
    const volatile char a = expected[i % expected.size()];
    const volatile char b = offered[i];
    difference |= static_cast<unsigned char>(a ^ b);
  }
  return difference == 0;
}

Result<Welcome> judge_hello(const Greeting& ours, const Greeting& theirs,
                            const std::string& address) {
  constexpr std::size_t kShown = 64;
  const std::string peer =
      (theirs.name.empty() ? "a peer" : shortened(theirs.name, kShown)) + " at " + address;
  const std::string here = ours.name.empty() ? "this server" : ours.name;
  Welcome out;
  out.version = std::min(ours.max_version, theirs.max_version);
  if (out.version < std::max(ours.min_version, theirs.min_version))
    return Error(ErrorCode::kFailedPrecondition, "no common wire version: " + here + " (release " +
                                                     kVersion + ") speaks " + range(ours) + ", " +
                                                     peer + " speaks " + range(theirs) +
                                                     ": run the same release on both sides")
        .with_refusal({VersionMismatch{{ours.min_version, ours.max_version},
                                       {theirs.min_version, theirs.max_version}}});
  const bool is_keyed = !ours.keyed_token.empty() && theirs.role == ours.keyed_role;
  if (!(is_keyed ? is_same_secret(ours.keyed_token, theirs.token) : is_known(ours, theirs)))
    return Error(
        ErrorCode::kFailedPrecondition,
        "token refused by " + here + ": the one sent by " + peer + " is " +
            (theirs.token.empty() ? "empty" : "another") +
            (is_keyed ? ", and role \"" + ours.keyed_role + "\" has a token of its own" : ""));
  CENTROID_TRY(check_role(ours, theirs, here + " refuses " + peer));
  if (!ours.run_id.empty() && !theirs.run_id.empty() && ours.run_id != theirs.run_id)
    return Error(ErrorCode::kFailedPrecondition, "other run: " + here + " serves \"" + ours.run_id +
                                                     "\", " + peer + " asks for \"" +
                                                     shortened(theirs.run_id, kShown) + "\"");
  if (ours.manifest_hash != 0 && theirs.manifest_hash != 0 &&
      ours.manifest_hash != theirs.manifest_hash)
    return Error(ErrorCode::kFailedPrecondition,
                 "another model: " + peer + " has manifest hash " + hex(theirs.manifest_hash) +
                     ", " + here + " has " + hex(ours.manifest_hash) +
                     "; names, shapes and order of all tensors must be the same");
  out.limits = smaller(ours.limits, theirs.limits);
  out.credit_bytes = ours.credit_bytes;
  out.role = ours.role;
  out.name = ours.name;
  out.run_id = ours.run_id.empty() ? theirs.run_id : ours.run_id;
  return out;
}

Task<Result<Peer>> send_hello(Connection& connection, Greeting greeting) {
  CENTROID_CO_TRY(check_greeting(greeting));
  connection.set_limits(greeting_limits());
  const std::vector<std::byte> head = encode_hello(greeting);
  OutFrame hello;
  hello.kind = kHello;
  hello.flags = kFlagRequest;
  hello.head = head;
  CENTROID_CO_TRY(co_await connection.write(hello));

  CENTROID_CO_ASSIGN(const InFrame frame, co_await connection.read_header());
  const bool is_refusal = (frame.header.flags & kFlagError) != 0;
  const std::uint32_t flags = is_refusal ? kFlagResponse | kFlagError : kFlagResponse;
  CENTROID_CO_TRY(check_frame(frame.header, "HelloReply", kHelloReply, flags, connection.peer()));
  if (is_refusal) co_return decode_error(frame.head);
  CENTROID_CO_ASSIGN(const Welcome welcome, decode_welcome(frame.head));
  if (welcome.version < greeting.min_version || welcome.version > greeting.max_version)
    co_return Error(ErrorCode::kFailedPrecondition, connection.peer() + " chose wire version " +
                                                        std::to_string(welcome.version) +
                                                        ", offered was " + range(greeting));
  if (!greeting.run_id.empty() && greeting.run_id != welcome.run_id)
    co_return Error(ErrorCode::kFailedPrecondition, connection.peer() + " serves run \"" +
                                                        welcome.run_id + "\", asked was \"" +
                                                        greeting.run_id + "\"");
  Peer peer;
  peer.role = welcome.role;
  peer.name = welcome.name;
  peer.run_id = welcome.run_id;
  peer.address = connection.peer();
  peer.version = welcome.version;
  peer.limits = smaller(greeting.limits, welcome.limits);
  peer.credit_bytes = welcome.credit_bytes;
  connection.set_limits(peer.limits);
  co_return peer;
}

Task<Result<Peer>> answer_hello(Connection& connection, Greeting greeting) {
  CENTROID_CO_TRY(check_greeting(greeting));
  connection.set_limits(greeting_limits());
  CENTROID_CO_ASSIGN(const InFrame frame, co_await connection.read_header());
  const std::uint64_t id = frame.header.id;
  const Status is_hello =
      check_frame(frame.header, "Hello", kHello, kFlagRequest, connection.peer());
  if (!is_hello.ok()) co_return co_await refuse(connection, id, is_hello.error());
  Result<Greeting> theirs = decode_hello(frame.head);
  if (!theirs.ok())
    co_return co_await refuse(connection, id,
                              std::move(theirs).error().with_context(connection.peer()));
  Result<Welcome> welcome = judge_hello(greeting, *theirs, connection.peer());
  if (!welcome.ok()) co_return co_await refuse(connection, id, std::move(welcome).error());

  Peer peer;
  peer.role = theirs->role;
  peer.name = theirs->name;
  peer.run_id = welcome->run_id;
  peer.address = connection.peer();
  peer.version = welcome->version;
  peer.limits = welcome->limits;
  peer.credit_bytes = theirs->credit_bytes;
  peer.manifest_hash = theirs->manifest_hash;
  // Before the reply leaves: the next frame may already have the agreed size.
  connection.set_limits(peer.limits);
  const std::vector<std::byte> head = encode_welcome(*welcome);
  OutFrame reply;
  reply.kind = kHelloReply;
  reply.flags = kFlagResponse;
  reply.head = head;
  CENTROID_CO_TRY(co_await connection.write(reply));
  co_return peer;
}

}  // namespace centroid::transport
