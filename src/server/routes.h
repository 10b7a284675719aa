#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/http.h"

// Which path does what: a table, filled once, before the first request.

namespace palimpsest::server {

struct Route {
  using Action = std::function<void(const Request&, const std::shared_ptr<Reply>&)>;

  std::string_view method;
  /// "/v1/models/{model}": a last part in braces stands for whatever is there, slashes included; it
  /// becomes Request::name. A path that is named in full goes before such a one.
  std::string_view path;
  Action action;      ///< on a worker's thread; what it throws becomes the answer
  bool open = false;  ///< no key is needed
  ErrorForm errors = ErrorForm::kOpenAi;
};

class Routes {
 public:
  void add(std::vector<Route> routes);

  struct Match {
    const Route* route = nullptr;  ///< null: the path or the method is not served
    std::string name;              ///< what {...} stands for, percent signs decoded
    std::string allowed;           ///< "GET, POST": methods of the path; empty: no such path
    ErrorForm errors = ErrorForm::kOpenAi;  ///< of the path
  };
  Match find(std::string_view method, std::string_view path) const;
  const std::vector<Route>& all() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

/// "a%2Fb" is "a/b"; what is no such code stays as it is.
std::string percent_decoded(std::string_view text);

}  // namespace palimpsest::server
