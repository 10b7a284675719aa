#include "report/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace palimpsest::report {

Terminal inspect_terminal(std::FILE* stream) {
  Terminal terminal;
  const int fd = fileno(stream);
  const char* term = std::getenv("TERM");
  terminal.interactive = fd >= 0 && isatty(fd) == 1 && !(term && std::string_view(term) == "dumb");
  const char* no_color = std::getenv("NO_COLOR");
  terminal.color = terminal.interactive && !(no_color && *no_color);
  winsize size{};
  if (terminal.interactive && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = size.ws_col;
  }
  return terminal;
}

}  // namespace palimpsest::report
