#include "tests/support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace centroid::test {

HttpClient::HttpClient(std::uint16_t port, std::chrono::milliseconds patience)
    : patience_(patience) {
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(socket_);
    socket_ = -1;
  }
}

HttpClient::~HttpClient() {
  if (socket_ >= 0) ::close(socket_);
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool HttpClient::fill() {
  pollfd waiting{socket_, POLLIN, 0};
  if (::poll(&waiting, 1, static_cast<int>(patience_.count())) != 1) return false;
  char chunk[16384];
  const ssize_t n = ::recv(socket_, chunk, sizeof chunk, 0);
  if (n <= 0) return false;
  buffer_.append(chunk, static_cast<std::size_t>(n));
  return true;
}

std::optional<HttpReply> HttpClient::receive(bool is_head) {
  std::size_t end = std::string::npos;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos)
    if (!fill()) return std::nullopt;
  HttpReply reply;
  const std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  reply.status = std::atoi(head.substr(9, 3).c_str());
  for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
    const auto line_end = head.find("\r\n", at);
    const std::string line = head.substr(at, line_end - at);
    const auto colon = line.find(':');
    std::string name = line.substr(0, colon);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    reply.fields[name] = line.substr(std::min(colon + 2, line.size()));
    at = line_end + 2;
  }
  const auto length = reply.fields.find("content-length");
  const std::size_t size = is_head || length == reply.fields.end() ? 0 : std::stoul(length->second);
  while (buffer_.size() < size)
    if (!fill()) return std::nullopt;
  reply.body = buffer_.substr(0, size);
  buffer_.erase(0, size);
  return reply;
}

std::optional<std::string> HttpClient::receive_chunk() {
  std::size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos)
    if (!fill()) return std::nullopt;
  const std::size_t size = std::stoul(buffer_.substr(0, end), nullptr, 16);
  while (buffer_.size() < end + 2 + size + 2)
    if (!fill()) return std::nullopt;
  std::string chunk = buffer_.substr(end + 2, size);
  buffer_.erase(0, end + 2 + size + 2);
  return chunk;
}

bool HttpClient::wait_closed() {
  const auto until = std::chrono::steady_clock::now() + patience_;
  while (fill()) buffer_.clear();
  return std::chrono::steady_clock::now() < until;
}

HttpReply HttpClient::request(std::string_view method, std::string_view target,
                              std::string_view fields, std::string_view body) {
  if (!send(http_request_text(method, target, fields, body))) return {};
  return receive(method == "HEAD").value_or(HttpReply{});
}

std::string http_request_text(std::string_view method, std::string_view target,
                              std::string_view fields, std::string_view body) {
  std::string text = std::string(method) + " " + std::string(target) + " HTTP/1.1\r\n";
  if (fields.find("Host:") == std::string_view::npos) text += "Host: localhost\r\n";
  text += fields;
  if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + std::string(body);
}

}  // namespace centroid::test
