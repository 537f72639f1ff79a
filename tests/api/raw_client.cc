#include "api/raw_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace expertplex::testing {
namespace {

constexpr int kLimitMs = 30'000;

std::map<std::string, std::string> parse_headers(std::string_view head) {
  std::map<std::string, std::string> headers;
  while (!head.empty()) {
    const size_t end = std::min(head.find("\r\n"), head.size());
    const std::string_view line = head.substr(0, end);
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos) {
      std::string name(line.substr(0, colon));
      std::transform(name.begin(), name.end(), name.begin(), ::tolower);
      std::string_view value = line.substr(colon + 1);
      value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
      headers[name] = std::string(value);
    }
    head.remove_prefix(std::min(end + 2, head.size()));
  }
  return headers;
}

}  // namespace

RawClient::RawClient(int port, int receive_buffer) {
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
}

RawClient::~RawClient() { close(); }

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

bool RawClient::receive() {
  if (ended_ || socket_ < 0) return false;
  pollfd entry{socket_, POLLIN, 0};
  char bytes[65536];
  if (poll(&entry, 1, kLimitMs) <= 0) return false;
  const ssize_t count = recv(socket_, bytes, sizeof bytes, 0);
  ended_ = count <= 0;
  if (count > 0) buffer_.append(bytes, static_cast<size_t>(count));
  return count > 0;
}

bool RawClient::read_until(std::string_view text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!receive()) return false;
  }
  return true;
}

RawResponse RawClient::read_response(bool head_only) {
  RawResponse response;
  if (!read_until("\r\n\r\n")) return response;
  const size_t head_end = buffer_.find("\r\n\r\n");
  const std::string head = buffer_.substr(0, head_end);
  buffer_.erase(0, head_end + 4);
  response.headers =
      parse_headers(std::string_view(head).substr(std::min(head.find("\r\n") + 2, head.size())));
  const int status = std::atoi(head.c_str() + std::string_view("HTTP/1.1 ").size());
  if (head_only || status == 100) {
    response.status = status;
    return response;
  }
  if (response.headers.count("transfer-encoding")) {
    while (true) {
      if (!read_until("\r\n")) return response;
      const size_t size = std::strtoul(buffer_.c_str(), nullptr, 16);
      buffer_.erase(0, buffer_.find("\r\n") + 2);
      while (buffer_.size() < size + 2) {
        if (!receive()) return response;
      }
      response.body.append(buffer_, 0, size);
      buffer_.erase(0, size + 2);
      if (size == 0) break;
    }
  } else if (response.headers.count("content-length")) {
    const size_t size = std::strtoul(response.headers["content-length"].c_str(), nullptr, 10);
    while (buffer_.size() < size) {
      if (!receive()) return response;
    }
    response.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
  } else {
    response.body = read_all();
  }
  response.status = status;
  return response;
}

std::string RawClient::read_all() {
  while (receive()) {
  }
  return std::move(buffer_);
}

bool RawClient::closed_by_peer() {
  while (receive()) {
  }
  return ended_;
}

void RawClient::shutdown_send() { ::shutdown(socket_, SHUT_WR); }

void RawClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

std::string get(std::string_view path, std::string_view extra_headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: test\r\n{}\r\n", path, extra_headers);
}

std::string post(std::string_view path, std::string_view body, std::string_view extra_headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n{}\r\n{}",
      path, body.size(), extra_headers, body);
}

}  // namespace expertplex::testing
