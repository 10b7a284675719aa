#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "hub/listed_fetch.h"
#include "palimpsest/engine.h"
#include "report/numbers.h"
#include "runtime/picture.h"
#include "server/http.h"
#include "server/service.h"

namespace palimpsest::cli {
namespace {

/// Keys by both flags. Throws Error for a file without any.
std::vector<std::string> read_keys(const Options& options) {
  std::vector<std::string> keys;
  if (options.api_key) {
    if (options.api_key->empty()) throw make_error(ErrorCode::kUsage, "--api-key: the key is empty");
    keys.push_back(*options.api_key);
  }
  if (!options.api_key_file) return keys;
  const std::string text = read_text(*options.api_key_file);
  std::size_t found = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    keys.push_back(line);
    ++found;
  }
  if (found == 0) throw make_error(ErrorCode::kInvalidFile, "{}: holds no key", *options.api_key_file);
  return keys;
}

std::string model_name(const Options& options) {
  if (options.alias) return *options.alias;
  std::filesystem::path path(options.model);
  if (!path.has_filename()) path = path.parent_path();
  std::string name = path.filename().string();
  return name.empty() || name == "." ? "model" : name;
}

server::ServiceOptions service_options(const Options& options, const Tokenizer& tokenizer) {
  server::ServiceOptions service;
  service.name = model_name(options);
  service.defaults = sampling_params(options);
  service.sessions = options.sessions_dir.value_or("");
  service.web = !options.no_web;
  try {
    service.format = ChatFormat::create(tokenizer, options.model);
  } catch (const Error& error) {
    log::warning("no chats: {}", error.text());
  }
  return service;
}

/// The model's eyes; null where it has none, or none that can be used.
std::shared_ptr<const VisionTower> load_tower(const Options& options, const Model& model, const Tokenizer& tokenizer) {
  try {
    if (!vision_config(options)) return nullptr;
    const auto tower = VisionTower::load(options.model, std::nullopt, model.device());
    if (!tower) return nullptr;
    check_tower(*tower, model.config());
    ChatPictures::create(tower->config(), tokenizer);
    return tower;
  } catch (const Error& error) {
    log::warning("no pictures: {}", error.text());
    return nullptr;
  }
}

/// Where pictures of requests may be fetched from; empty: nowhere.
std::function<Result<std::vector<std::byte>>(const std::string&)> picture_fetch(const Options& options) {
  if (!options.image_urls) return {};
  try {
    const auto fetch = std::make_shared<hub::ListedFetch>(*options.image_urls);
    return [fetch](const std::string& url) { return fetch->get(url); };
  } catch (Error& error) {
    throw error.add_context("--image-urls");
  }
}

}  // namespace

int serve(const Options& options) {
  // Everything that can be wrong without the model is found before it is loaded.
  const std::vector<std::string> keys = read_keys(options);
  if (options.alias && options.alias->empty()) throw make_error(ErrorCode::kUsage, "--alias: the name is empty");
  if (!server::is_loopback(options.host) && keys.empty() && !options.allow_remote_without_key) {
    throw make_error(ErrorCode::kUsage,
                     "--host: {} can be reached from other machines; give --api-key-file, or "
                     "--allow-remote-without-key if anybody there may use the model",
                     options.host);
  }
  const server::HostCheck hosts(options.host, options.allowed_hosts);
  const auto fetch = picture_fetch(options);
  const auto model = load_model(options);
  const Tokenizer tokenizer =
      require_tokenizer(options.model, model->config().vocab_size, ", and serve works with text");
  server::ServiceOptions service_setup = service_options(options, tokenizer);
  service_setup.keys = keys;

  EngineOptions engine_setup = engine_options(options);
  engine_setup.tower = load_tower(options, *model, tokenizer);
  if (engine_setup.tower) service_setup.vision = vision_config(options);
  else engine_setup.picture_patches = 0;
  service_setup.fetch = fetch;
  Engine engine(model, engine_setup);
  std::atomic<const server::HttpServer*> listening = nullptr;  // requests may come before it is set
  service_setup.http_counts = [&listening] {
    const server::HttpServer* there = listening;
    return there ? there->counts() : server::HttpCounts{};
  };
  server::Service service(engine, tokenizer, std::move(service_setup));
  server::HttpOptions http_options;
  http_options.host = options.host;
  http_options.port = static_cast<std::uint16_t>(options.port);
  // Pages that are made to lead here have no key. From other machines any name may be the right one.
  if (!options.allowed_hosts.empty() || (keys.empty() && server::is_loopback(options.host))) http_options.hosts = hosts;
  http_options.log = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  server::HttpServer http(http_options, service);
  listening = &http;
  std::fprintf(stderr, "serving %s on http://%s:%d: %s answers at once, %s tokens each, %s of memory\n",
               model_name(options).c_str(), options.host.c_str(), http.port(),
               report::format_grouped(engine.options().sequences).c_str(),
               report::format_grouped(engine.context()).c_str(),
               report::format_bytes(engine.memory().total()).c_str());
  http.wait_for_signal();
  std::fprintf(stderr, "shutting down: answers under way have %s seconds; again to leave at once\n",
               report::format_grouped(options.shutdown_seconds).c_str());
  service.begin_shutdown();
  http.stop_accepting();
  engine.stop(std::chrono::seconds(options.shutdown_seconds));
  http.drain(std::chrono::seconds(5));
  return 0;
}

}  // namespace palimpsest::cli
