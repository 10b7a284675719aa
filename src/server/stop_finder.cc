#include "server/stop_finder.h"

#include <algorithm>

namespace palimpsest::server {

bool StopFinder::push(std::string_view text, std::string& out) {
  if (found_) return false;
  if (stops_.empty()) {
    out += text;
    return true;
  }
  held_ += text;
  std::size_t begin = held_.npos, end = held_.npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == held_.npos) continue;
    const std::size_t over = at + stop.size();
    if (end == held_.npos || over < end || (over == end && at < begin)) begin = at, end = over;
  }
  if (end != held_.npos) {
    out.append(held_, 0, begin);
    stop_ = held_.substr(begin, end - begin);
    held_.clear();
    found_ = true;
    return false;
  }
  std::size_t keep = 0;  // bytes at the end that begin a stop
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  out.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return true;
}

void StopFinder::flush(std::string& out) {
  if (!found_) out += held_;
  held_.clear();
}

}  // namespace palimpsest::server
