#include "support/terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace palimpsest::test {

Terminal::Terminal(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  winsize size{};
  size.ws_row = 40, size.ws_col = 200;
  pid_ = forkpty(&screen_, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::runtime_error("forkpty");
  if (pid_ == 0) {
    setenv("TERM", "xterm", 1);
    alarm(300);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
}

Terminal::~Terminal() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(screen_);
}

void Terminal::type(std::string_view keys) {
  if (write(screen_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
    throw std::runtime_error("the terminal takes no keys");
}

bool Terminal::read_more() {
  pollfd readable{screen_, POLLIN, 0};
  if (poll(&readable, 1, 120'000) <= 0) return false;
  char buffer[4096];
  const ssize_t size = read(screen_, buffer, sizeof buffer);
  if (size <= 0) return false;  // EIO: the program has left its terminal
  std::string text(buffer, static_cast<std::size_t>(size));
  text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
  seen_ += text;
  all_ += text;
  return true;
}

std::string Terminal::read_until(std::string_view text) {
  std::size_t at;
  while ((at = seen_.find(text)) == std::string::npos) {
    if (!read_more())
      throw std::runtime_error("no \"" + std::string(text) + "\" in what was written:\n" + all_);
  }
  std::string front = seen_.substr(0, at);
  seen_.erase(0, at + text.size());
  return front;
}

void Terminal::read_some(std::size_t bytes) {
  while (seen_.size() < bytes) {
    if (!read_more()) throw std::runtime_error("nothing more is written:\n" + all_);
  }
}

int Terminal::exit_code() {
  while (read_more()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace palimpsest::test
