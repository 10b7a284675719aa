#include "support/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <stdexcept>
#include <tuple>

namespace palimpsest::test {
namespace {

struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(int i) {
    if (ends[i] >= 0) close(ends[i]);
    ends[i] = -1;
  }
};

[[noreturn]] void become(const std::string& program, const std::vector<std::string>& arguments,
                         const Pipe& in, const Pipe& out, const Pipe& err,
                         const std::string& out_path) {
  const int out_fd = out_path.empty() ? out.ends[1] : open(out_path.c_str(), O_WRONLY);
  if (dup2(in.ends[0], 0) < 0 || dup2(out_fd, 1) < 0 || dup2(err.ends[1], 2) < 0) _exit(126);
  alarm(300);
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  _exit(127);
}

/// Feeds and drains until the child has closed both outputs.
void exchange(Pipe& in, Pipe& out, Pipe& err, const std::string& input, ChildResult& result) {
  std::size_t written = 0;
  if (input.empty()) in.close_end(1);
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    pollfd fds[3] = {{in.ends[1], POLLOUT, 0}, {out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
    poll(fds, 3, -1);
    if (in.ends[1] >= 0 && fds[0].revents != 0) {
      const ssize_t n = write(in.ends[1], input.data() + written,
                              std::min<std::size_t>(input.size() - written, 4096));
      if (n > 0) written += static_cast<std::size_t>(n);
      if (n <= 0 || written == input.size()) in.close_end(1);
    }
    char buffer[4096];
    for (const auto& [pipe, text, events] :
         {std::tuple<Pipe*, std::string*, short>{&out, &result.out, fds[1].revents},
          {&err, &result.err, fds[2].revents}}) {
      if (pipe->ends[0] < 0 || events == 0) continue;
      const ssize_t n = read(pipe->ends[0], buffer, sizeof buffer);
      if (n > 0) text->append(buffer, static_cast<std::size_t>(n));
      if (n <= 0) pipe->close_end(0);
    }
  }
}

}  // namespace

ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments,
                      const std::string& input, const std::string& out_path) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe in, out, err;
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    become(program, arguments, in, out, err, out_path);
  }
  in.close_end(0);
  out.close_end(1);
  err.close_end(1);
  ChildResult result;
  exchange(in, out, err, input, result);
  int status = 0;
  rusage usage{};
  wait4(pid, &status, 0, &usage);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.peak_rss = static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  return result;
}

}  // namespace palimpsest::test
