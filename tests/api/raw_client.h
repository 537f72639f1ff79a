// RawClient: a blocking socket that sends exactly the bytes it is told to, and reads HTTP answers.
// Every wait has a limit.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace expertplex::testing {

struct RawResponse {
  int status = 0;                              // 0: the connection ended or the limit passed first
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
};

class RawClient {
 public:
  // `receive_buffer`: SO_RCVBUF, for clients that read slowly; 0: the system's.
  explicit RawClient(int port, int receive_buffer = 0);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return socket_ >= 0; }
  // False if the peer has closed.
  bool send(std::string_view bytes);
  // Reads one answer (`head_only`: one without a body, as to HEAD).
  RawResponse read_response(bool head_only = false);
  // Reads until the received bytes contain `text`; they stay for later reads.
  bool read_until(std::string_view text);
  // What is left until the peer closes.
  std::string read_all();
  // Whether the peer closes within the limit, whatever it sends before.
  bool closed_by_peer();
  void shutdown_send();
  void close();

 private:
  bool receive();  // more bytes into buffer_; false at the end or the limit

  int socket_ = -1;
  bool ended_ = false;
  std::string buffer_;
};

std::string get(std::string_view path, std::string_view extra_headers = "");
std::string post(std::string_view path, std::string_view body, std::string_view extra_headers = "");

}  // namespace expertplex::testing
