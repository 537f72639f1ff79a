// Router: which handler answers which method and path. Unknown paths get 404, known paths with
// another method 405 and the methods that would do; HEAD is answered like GET.
//
// Thread rules: routes are added before the server starts; dispatch runs on the io thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/http_types.h"

namespace expertplex {

class Router {
 public:
  // A `path` that ends in "{id}" matches every longer path with that start.
  void add(std::string method, std::string path, HttpHandler handler);
  void dispatch(std::shared_ptr<Exchange> exchange) const;

 private:
  struct Route {
    std::string method;
    std::string path;
    std::string prefix;  // set when the path ends in "{id}"
    HttpHandler handler;
  };
  std::vector<Route> routes_;
};

}  // namespace expertplex
