#pragma once

#include <chrono>
#include <vector>

#include "transport/session.h"

namespace centroid::transport {

/// Largest frame (48 bytes of header included) accepted before the peer is authenticated, and how
/// long we wait for it.
inline constexpr std::uint32_t kMaxGreetingBytes = 4096;
inline constexpr std::chrono::seconds kGreetingTimeout{5};

inline constexpr std::size_t kMaxRoleBytes = 64;
inline constexpr std::size_t kMaxNameBytes = 256;
inline constexpr std::size_t kMaxRunIdBytes = 256;
inline constexpr std::size_t kMaxTokenBytes = 1024;
/// A side that accepts smaller heads could not be told why a session ends.
inline constexpr std::uint32_t kMinHeadLimit = 256;
inline constexpr std::size_t kMaxErrorBytes = 4096;
inline constexpr std::size_t kMaxEndpointBytes = 300;

/// Head of a HelloReply: the server's terms.
struct Welcome {
  std::uint16_t version = kWireVersion;
  FrameLimits limits;  ///< the smaller of both sides'
  std::uint64_t credit_bytes =
      0;  ///< payload bytes that the client may have outstanding towards the server
  std::string role, name, run_id;
};

/// fails invalid_argument: a text too long, limits too small, min_version > max_version; names the
/// field.
Status check_greeting(const Greeting& greeting);

std::vector<std::byte> encode_hello(const Greeting& greeting);
/// Never reads past the end; needs no more memory than the head. The version range is first in
/// every version of the protocol; fields of later versions are skipped.
/// fails  invalid_argument: truncated, too long a text, limits too small, bytes left over.
Result<Greeting> decode_hello(Bytes head);
std::vector<std::byte> encode_welcome(const Welcome& welcome);
Result<Welcome> decode_welcome(Bytes head);  ///< fails as decode_hello
std::vector<std::byte> encode_credit(std::uint64_t bytes);
Result<std::uint64_t> decode_credit(Bytes head);  ///< fails invalid_argument: not 8 bytes, or zero

/// The server's decision on a Hello from `address`: version, then token, then run id, then model.
/// Pure.
///
/// fails  failed_precondition: no common version (names both ranges), token refused (never shows
///        it), other run (names both), another model (shows both hashes)
Result<Welcome> judge_hello(const Greeting& ours, const Greeting& theirs,
                            const std::string& address);

/// True if equal; takes the same time wherever `offered` differs.
bool is_same_secret(std::string_view expected, std::string_view offered);

/// Client side on a fresh connection: Hello out, HelloReply in. The caller bounds the time by
/// closing the connection.
Task<Result<Peer>> send_hello(Connection& connection, Greeting greeting);
/// Server side: Hello in, HelloReply or an error reply out.
Task<Result<Peer>> answer_hello(Connection& connection, Greeting greeting);

}  // namespace centroid::transport
