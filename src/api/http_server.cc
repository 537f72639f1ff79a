#include "api/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "api/http_session.h"
#include "base/log.h"

namespace expertplex {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kScratchBytes = size_t{64} << 10;
constexpr Nanoseconds kCutLimit = 5 * kSecond;

// Outlives the io_context, because engine threads may hold it.
class AsioLoop final : public IoLoop {
 public:
  explicit AsioLoop(asio::io_context& context) : context_(&context) {}

  void post(std::function<void()> function) override {
    const std::lock_guard lock(mutex_);
    if (context_) asio::post(*context_, std::move(function));
  }

  void post_after(Nanoseconds delay, std::function<void()> function) override {
    const std::lock_guard lock(mutex_);
    if (!context_) return;
    auto timer = std::make_shared<asio::steady_timer>(*context_, std::chrono::nanoseconds(delay));
    timer->async_wait([timer, function = std::move(function)](error_code error) {
      if (!error) function();
    });
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    context_ = nullptr;
  }

 private:
  std::mutex mutex_;
  asio::io_context* context_;
};

Error listen_error(const HttpServerOptions& options, const error_code& error) {
  if (error == asio::error::address_in_use) {
    return make_error(ErrorCode::kUnavailable,
                      "cannot listen on {}:{}: the port is in use; choose another with --port",
                      options.host, options.port);
  }
  return make_error(ErrorCode::kInvalidArgument, "cannot listen on {}:{}: {}", options.host,
                    options.port, error.message());
}

}  // namespace

struct HttpServer::Impl {
  asio::io_context io{1};
  std::shared_ptr<AsioLoop> loop = std::make_shared<AsioLoop>(io);
  tcp::acceptor acceptor{io};
  asio::steady_timer ticker{io};
  HttpSessionContext context;
  bool accept_paused = false;  // out of file descriptors, until the next tick
  int port = 0;
  std::thread thread;

  std::mutex mutex;
  std::condition_variable closed;
  int session_count = 0;  // guarded by mutex
  bool stopped = false;   // guarded by mutex: the io thread runs no more

  Result<void> open();
  void accept();
  void add_session(tcp::socket socket);
  void tick();
  void run();
  int wait_for_sessions(Nanoseconds limit);
};

Result<void> HttpServer::Impl::open() {
  const HttpServerOptions& options = context.options;
  if (options.port < 0 || options.port > 65535) {
    return make_error(ErrorCode::kInvalidArgument, "port: expected 0 to 65535, got {}",
                      options.port);
  }
  error_code error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "cannot listen on '{}': no such address; 127.0.0.1 or 0.0.0.0 will do",
                      options.host);
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return listen_error(options, error);
  port = acceptor.local_endpoint(error).port();
  return {};
}

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (error) {
      log_warn("cannot accept a connection: {}", error.message());
      accept_paused = true;
      return;
    }
    try {
      add_session(std::move(socket));
    } catch (const std::exception& e) {
      log_error("http: a new connection is cut: {}", e.what());
    }
    accept();
  });
}

void HttpServer::Impl::add_session(tcp::socket socket) {
  if (context.sessions.size() >= static_cast<size_t>(context.options.max_connections)) {
    log_warn("refused a connection: {} are open", context.sessions.size());
    return;  // closes it
  }
  auto session = std::make_shared<HttpSession>(std::move(socket), context);
  context.sessions.insert(session);
  {
    const std::lock_guard lock(mutex);
    ++session_count;
  }
  session->start();
}

void HttpServer::Impl::tick() {
  ticker.expires_after(std::chrono::nanoseconds(context.options.tick));
  ticker.async_wait([this](error_code error) {
    if (error) return;
    const Nanoseconds now = now_ns();
    const std::vector<std::shared_ptr<HttpSession>> sessions(context.sessions.begin(),
                                                             context.sessions.end());
    for (const auto& session : sessions) session->on_tick(now);
    if (accept_paused && acceptor.is_open()) {
      accept_paused = false;
      accept();
    }
    tick();
  });
}

void HttpServer::Impl::run() {
  pthread_setname_np(pthread_self(), "http");
  while (true) {
    try {
      io.run();
      break;
    } catch (const std::exception& e) {
      log_error("http: {}", e.what());
    }
  }
  const std::lock_guard lock(mutex);
  stopped = true;
  closed.notify_all();
}

int HttpServer::Impl::wait_for_sessions(Nanoseconds limit) {
  std::unique_lock lock(mutex);
  closed.wait_for(lock, std::chrono::nanoseconds(limit), [this] { return session_count == 0; });
  return session_count;
}

HttpServer::HttpServer() : impl_(std::make_unique<Impl>()) {}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(HttpServerOptions options,
                                                       HttpHandler handler, Observer observer) {
  std::unique_ptr<HttpServer> server(new HttpServer);
  Impl& impl = *server->impl_;
  impl.context.options = std::move(options);
  impl.context.handler = std::move(handler);
  impl.context.observer = std::move(observer);
  impl.context.loop = impl.loop;
  impl.context.scratch.resize(kScratchBytes);
  impl.context.forget = [&impl](const std::shared_ptr<HttpSession>& session) {
    impl.context.sessions.erase(session);
    const std::lock_guard lock(impl.mutex);
    if (--impl.session_count == 0) impl.closed.notify_all();
  };
  EXPERTPLEX_TRY(impl.open());
  return server;
}

void HttpServer::start() {
  EXPERTPLEX_CHECK(!impl_->thread.joinable());
  impl_->accept();
  impl_->tick();
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

HttpServer::~HttpServer() {
  if (impl_->thread.joinable()) drain(0);
}

int HttpServer::port() const { return impl_->port; }

std::shared_ptr<IoLoop> HttpServer::loop() const { return impl_->loop; }

int HttpServer::open_connections() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->session_count;
}

int HttpServer::drain(Nanoseconds limit) {
  Impl& impl = *impl_;
  if (!impl.thread.joinable()) return 0;
  const auto for_all = [&impl](void (HttpSession::*action)()) {
    const std::vector<std::shared_ptr<HttpSession>> sessions(impl.context.sessions.begin(),
                                                             impl.context.sessions.end());
    for (const auto& session : sessions) (session.get()->*action)();
  };
  impl.loop->post([&impl, for_all] {
    error_code ignored;
    impl.context.draining = true;
    impl.acceptor.close(ignored);
    for_all(&HttpSession::close_when_idle);
  });
  const int left = impl.wait_for_sessions(limit);
  impl.loop->post([&impl, for_all] {
    for_all(&HttpSession::cut);
    // After the disconnect callbacks, which stand in the queue by now.
    asio::post(impl.io, [&impl] { impl.io.stop(); });
  });
  {
    std::unique_lock lock(impl.mutex);
    if (!impl.closed.wait_for(lock, std::chrono::nanoseconds(kCutLimit),
                              [&impl] { return impl.stopped; })) {
      impl.io.stop();
    }
  }
  impl.thread.join();
  impl.loop->stop();
  return left;
}

}  // namespace expertplex
