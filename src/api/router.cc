#include "api/router.h"

#include "api/api_error.h"

namespace expertplex {
namespace {

constexpr std::string_view kIdSuffix = "{id}";

void refuse_path(Exchange& exchange) {
  exchange.set_route("other");
  ApiError error = bad_request(fmt::format("there is nothing at {}", exchange.request().path));
  error.status = 404;
  error.code = "route_not_found";
  exchange.respond(error_response(error));
}

void refuse_method(Exchange& exchange, const std::string& allowed) {
  ApiError error = bad_request(fmt::format("{} takes {}, not {}", exchange.request().path, allowed,
                                           exchange.request().method));
  error.status = 405;
  error.code = "method_not_allowed";
  HttpResponse response = error_response(error);
  response.headers.emplace_back("Allow", allowed);
  exchange.respond(std::move(response));
}

}  // namespace

void Router::add(std::string method, std::string path, HttpHandler handler) {
  Route route{std::move(method), std::move(path), {}, std::move(handler)};
  if (route.path.ends_with(kIdSuffix)) {
    route.prefix = route.path.substr(0, route.path.size() - kIdSuffix.size());
  }
  routes_.push_back(std::move(route));
}

void Router::dispatch(std::shared_ptr<Exchange> exchange) const {
  const std::string& path = exchange->request().path;
  const std::string method =
      exchange->request().method == "HEAD" ? "GET" : exchange->request().method;
  std::string allowed;
  for (const Route& route : routes_) {
    const bool matches = route.prefix.empty()
                             ? path == route.path
                             : path.size() > route.prefix.size() && path.starts_with(route.prefix);
    if (!matches) continue;
    exchange->set_route(route.path);
    if (route.method == method) return route.handler(std::move(exchange));
    if (!allowed.empty()) allowed += ", ";
    allowed += route.method;
  }
  if (allowed.empty()) return refuse_path(*exchange);
  refuse_method(*exchange, allowed);
}

}  // namespace expertplex
