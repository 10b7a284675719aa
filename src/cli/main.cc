#include <cstdio>
#include <new>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/budget.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/io.h"
#include "cli/model_spec.h"
#include "cli/parse.h"
#include "cli/setup.h"

namespace palimpsest::cli {
namespace {

int dispatch(const Options& options) {
  switch (options.command) {
    case Command::kRun:
      return run(options);
    case Command::kRecall:
      return recall(options);
    case Command::kInspect:
      return inspect(options);
    case Command::kLogits:
      return logits(options);
    case Command::kEval:
      return eval(options);
    case Command::kTokenize:
      return tokenize(options);
    case Command::kRender:
      return render(options);
    case Command::kPull:
      return pull(options);
    case Command::kLineage:
      return lineage(options);
    case Command::kConvert:
      return convert(options);
    case Command::kPlan:
      return plan(options);
    case Command::kSelfcheck:
      return selfcheck(options);
    case Command::kBench:
      return bench(options);
    case Command::kServe:
      return serve(options);
  }
  return 1;
}

int run_program(std::vector<std::string> arguments) {
  auto parsed = parse_command_line(std::move(arguments));
  if (const Message* message = std::get_if<Message>(&parsed)) {
    print(message->text);
    return 0;
  }
  Options& options = std::get<Options>(parsed);
  if (options.verbose) log::set_level(log::Level::kInfo);
  install_interrupt_handler();
  if (options.command != Command::kPull) options.model = resolve_model(options.model, options.command == Command::kPlan);
  if (options.command != Command::kPlan) choose_host_experts(options);
  keep_to_budget(options);
  return dispatch(options);
}

/// The one place where errors become text and exit codes.
int guarded(std::vector<std::string> arguments) {
  std::string text;
  int code = 1;
  try {
    return run_program(std::move(arguments));
  } catch (const Error& error) {
    text = error.text();
    code = error.code() == ErrorCode::kCancelled ? kInterruptedExit : exit_code(error.code());
  } catch (const std::bad_alloc&) {
    text = "out of memory";
  } catch (const std::exception& error) {
    text = std::string("unexpected: ") + error.what();
  }
  std::fprintf(stderr, "palimpsest: error: %s\n", text.c_str());
  return code;
}

}  // namespace
}  // namespace palimpsest::cli

int main(int argc, char** argv) {
  return palimpsest::cli::guarded(std::vector<std::string>(argv + 1, argv + argc));
}
