#pragma once

#include <charconv>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/async/task_group.h"
#include "transport/strangers.h"
#include "transport/transport.h"

namespace centroid::client {

/// Frames between the processes of a group when they find each other: a kind, and a head of text.
/// The kinds are on the wire.
enum class GroupFrame : std::uint16_t {
  // at the rendezvous
  kArrive = 0x5201,
  kAddresses = 0x5202,
  kRefused = 0x5203,
  kRunning = 0x5204,  ///< of a job that has begun: where it takes newcomers
  // at the place of a member
  kMember = 0x5211,    ///< it waits for the meeting
  kNewcomer = 0x5212,  ///< it wants to be a member
  kWatch = 0x5213,     ///< the connection ends with the process
  kMembers = 0x5214,
};

inline bool is_kind(const transport::InFrame& frame, GroupFrame kind) {
  return frame.header.kind == static_cast<std::uint16_t>(kind);
}

/// `layer`: TLS; nullptr: none.
transport::TransportOptions group_transport_options(std::shared_ptr<transport::StreamLayer> layer);

using StrangerPlace = std::unique_ptr<transport::Strangers::Place>;
/// What a connection gets whose first frame has come. The caller keeps place and frame.
using Answer = std::function<Task<void>(std::shared_ptr<transport::Connection>,
                                        transport::Strangers::Place&, const transport::InFrame&)>;
/// Answer each connection that comes to a listener, as one of `tasks`, until they are cancelled.
/// Strangers displace each other, and have memory for small heads only. One without a first frame,
/// such as one whose certificate is not accepted, is logged.
void answer_callers(TaskGroup& tasks, transport::Listener& listener,
                    transport::Strangers& strangers, Answer answer);

inline constexpr std::chrono::seconds kAnswer{5};  ///< until a process has read an answer

/// Ends the handshake of TLS, too.
///
/// fails  deadline_exceeded: closes the connection; as Connection::write
Task<Status> send_text(transport::Connection& connection, GroupFrame kind, std::string text,
                       Deadline deadline);
/// Send what a process waits for, within kAnswer.
Task<Status> answer_text(transport::Connection& connection, GroupFrame kind, std::string text);
/// The same with an error, which is that of its `read_text`.
Task<Status> answer_error(transport::Connection& connection, Error why);

/// The next frame, which has no payload.
///
/// fails  deadline_exceeded: closes the connection; resource_exhausted: the peer has no room for it
///        now; as Connection::read_header
Task<Result<transport::InFrame>> read_text(transport::Connection& connection, Deadline deadline);

/// Send a text to the process at `place`, and read what it answers. Asks again while the process
/// has no room, or closes the connection and accepts another one.
///
/// fails  as Transport::connect and send_text until `connected`, and read_text until `answered`
Task<Result<transport::InFrame>> ask_process(transport::Transport* transport,
                                             transport::Endpoint place, GroupFrame kind,
                                             std::string text, Deadline connected,
                                             Deadline answered);

inline std::string_view text_of(const transport::InFrame& frame) {
  return {reinterpret_cast<const char*>(frame.head.data()), frame.head.size()};
}

/// Parts of a text; the last one has the rest.
std::vector<std::string> split(std::string_view text, char end,
                               std::size_t most = std::string_view::npos);

template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, number);
  return failed == std::errc() && at == end;
}

/// Whether one side refuses how the other connects: its certificate, or that only one has TLS.
/// Another try meets the same.
bool is_refused(const Error& error);

/// Whether the system of the peer says that its process is gone. A machine that does not answer
/// says nothing, and one that is refused lives.
bool is_gone(const Error& error);

/// Whether a host is an address, and not a name.
bool is_literal(const std::string& host);

/// Where to listen so that others reach `place`: at `place` itself if that is loopback, else at all
/// addresses, because it may be a name of another network (Kubernetes, NAT).
std::string listening_host(const transport::Endpoint& place);

}  // namespace centroid::client
