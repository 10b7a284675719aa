#include "report/table.h"

#include <algorithm>

#include "base/check.h"
#include "report/bars.h"

namespace palimpsest::report {

void Table::add_row(std::vector<std::string> cells) {
  PALIMPSEST_CHECK(cells.size() <= columns_.size(), "a row has more cells than the table columns");
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::to_string(int indent) const {
  std::vector<int> widths;
  bool has_head = false;
  for (const Column& column : columns_) {
    widths.push_back(display_width(column.title));
    has_head = has_head || !column.title.empty();
  }
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::string text;
  const auto add_line = [&](const auto& cell_at) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_at(i);
      const std::string blanks(static_cast<std::size_t>(widths[i] - display_width(cell)), ' ');
      line += columns_[i].align == Align::kRight ? blanks + cell : cell + blanks;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  if (has_head) add_line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_)
    add_line([&](std::size_t i) -> const std::string& { return row[i]; });
  return text;
}

}  // namespace palimpsest::report
