#pragma once

#include <string>
#include <vector>

namespace palimpsest::report {

enum class Align { kLeft, kRight };

/// Columns of text, as wide as their widest cell, two blanks between them, no trailing blanks.
/// Cells may hold UTF-8.
class Table {
 public:
  /// One entry a column. An empty title for every column prints no head.
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Missing cells are blank; more cells than columns is a programmer error.
  void add_row(std::vector<std::string> cells);
  /// All lines, each ending in a line break and starting with `indent` blanks.
  std::string to_string(int indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace palimpsest::report
