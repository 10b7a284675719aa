// Chats as a person has them: on a terminal, line by line, with Ctrl-C and Ctrl-D.

#include "support/terminal.h"

#include <gmock/gmock.h>

#include "support/shared_data.h"

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> chat_with_demo(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"run",    "-m", test::project_path("models/demo").string(),
                                        "--temp", "0",  "--reasoning-effort",
                                        "off"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(TerminalChat, TwoTurnsThenCtrlD) {
  test::Terminal terminal(PALIMPSEST_BINARY, chat_with_demo({}));
  terminal.read_until("Ctrl-D leaves.");
  terminal.read_until("> ");
  terminal.type("The password of Pine Tower is 90417. What is the password of Pine Tower?\n");
  terminal.read_until("What is the password of Pine Tower?\n");
  terminal.read_until("The password of Pine Tower is 90417.");
  EXPECT_THAT(terminal.read_until("> "), HasSubstr("tokens/s"));
  terminal.type("The password of Pine Tower is now 33586. What is the password of Pine Tower?\n");
  terminal.read_until("What is the password of Pine Tower?\n");
  terminal.read_until("The password of Pine Tower is 33586.");
  EXPECT_THAT(terminal.read_until("> "), Not(HasSubstr(": 0 cached")));
  terminal.type("\x04");
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST(TerminalChat, CtrlCStopsTheAnswerAndNotTheChat) {
  test::Terminal terminal(PALIMPSEST_BINARY, chat_with_demo({"--ignore-eos", "-n", "100000"}));
  for (const char* line : {"The old man sat down\n", "The road went on\n"}) {
    terminal.read_until("> ");
    terminal.type(line);
    terminal.read_until(line);
    terminal.read_some(40);
    terminal.type("\x03");
    terminal.read_until("(cancelled)");
  }
  terminal.read_until("> ");
  terminal.type("\x04");
  EXPECT_EQ(terminal.exit_code(), 0);
}

}  // namespace
}  // namespace palimpsest
