#include <fmt/format.h>

#include "server/endpoints.h"

namespace palimpsest::server {
namespace {

class Text {
 public:
  template <class Value>
  void counter(std::string_view name, std::string_view help, Value value) {
    head(name, help, "counter");
    out += fmt::format("palimpsest_{} {}\n", name, value);
  }
  template <class Value>
  void gauge(std::string_view name, std::string_view help, Value value) {
    head(name, help, "gauge");
    out += fmt::format("palimpsest_{} {}\n", name, value);
  }
  void histogram(std::string_view name, std::string_view help, const DurationHistogram& h) {
    head(name, help, "histogram");
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < h.bounds.size(); ++i) {
      below += h.counts[i];
      out += fmt::format("palimpsest_{}_bucket{{le=\"{}\"}} {}\n", name, h.bounds[i], below);
    }
    out += fmt::format("palimpsest_{}_bucket{{le=\"+Inf\"}} {}\n", name, h.count);
    out += fmt::format("palimpsest_{0}_sum {1}\npalimpsest_{0}_count {2}\n", name, h.sum, h.count);
  }
  void head(std::string_view name, std::string_view help, std::string_view type) {
    out += fmt::format("# HELP palimpsest_{0} {1}\n# TYPE palimpsest_{0} {2}\n", name, help, type);
  }

  std::string out;
};

}  // namespace

std::string metrics_text(const EngineMetrics& m, const HttpCounts& http) {
  Text text;
  text.counter("http_requests_total", "Requests answered, whatever the answer.", http.requests);
  text.counter("http_client_errors_total", "Answers of 400 to 499.", http.client_errors);
  text.counter("http_server_errors_total", "Answers of 500 and more.", http.server_errors);
  text.counter("http_clients_gone_total", "Clients that left before their answer's end.", http.gone);
  text.counter("http_refused_connections_total", "Connections beyond the limit.", http.refused_connections);
  text.gauge("http_connections", "Connections now.", http.connections);
  text.counter("requests_total", "Requests taken into the queue.", m.submitted);
  text.counter("requests_refused_total", "Requests refused because the queue was full.", m.refused);
  text.counter("requests_finished_total", "Requests that have ended.", m.finished);
  text.head("choices_ended_total", "Answers that have ended, by reason.", "counter");
  for (std::size_t i = 0; i < kFinishReasons; ++i) {
    text.out += fmt::format("palimpsest_choices_ended_total{{reason=\"{}\"}} {}\n",
                            finish_reason_name(static_cast<FinishReason>(i)), m.choices_ended[i]);
  }
  text.counter("choices_nonfinite_total", "Answers ended by logits that were not finite.", m.nonfinite);
  text.gauge("sequences_waiting", "Sequences without a slot.", m.waiting);
  text.gauge("sequences_running", "Sequences with a slot.", m.running);
  text.gauge("slots", "Slots.", m.slots);
  text.gauge("pool_units", "Units of the memory of lists and snapshots.", m.pool_units);
  text.gauge("pool_units_free", "Those that are free.", m.pool_units_free);
  text.gauge("snapshots", "Snapshots held.", m.snapshots);
  text.counter("prompt_tokens_cached_total", "Tokens of prompts found computed.", m.prompts.cached_tokens);
  text.counter("prompt_tokens_replayed_total", "Tokens of prompts computed again behind a snapshot.", m.prompts.replayed_tokens);
  text.counter("prompt_tokens_computed_total", "Tokens of prompts computed for the first time.", m.prompts.computed_tokens);
  text.counter("tokens_written_total", "Tokens of answers.", m.written_tokens);
  text.counter("slow_masks_total", "Masks of constraints that took long, made beside the passes.", m.slow_masks);
  text.counter("preemptions_total", "Times a sequence stepped back for another.", m.preemptions);
  text.counter("passes_total", "Forward passes.", m.passes);
  text.counter("passes_failed_total", "Forward passes that failed.", m.failed_passes);
  text.counter("forward_seconds_total", "Seconds within forward passes.", m.forward_seconds);
  text.counter("pictures_read_total", "Pictures that the vision tower has read.", m.pictures);
  text.counter("picture_seconds_total", "Seconds of the vision tower.", m.picture_seconds);
  text.histogram("step_seconds", "Seconds of a step.", m.step_seconds);
  text.histogram("queue_seconds", "Seconds until a request started.", m.queue_seconds);
  text.histogram("first_token_seconds", "Seconds until a request's first token.", m.first_token_seconds);
  text.histogram("token_seconds", "Seconds between two tokens of an answer.", m.token_seconds);
  return std::move(text.out);
}

}  // namespace palimpsest::server
