// Three significant digits and the unit that keeps them short.
#include "cli/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tessera::cli {
namespace {

std::string three_digits(double value) {
  const double magnitude = std::abs(value);
  return fmt::format("{:.{}f}", value, magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0);
}

}  // namespace

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return three_digits(seconds * 1e6) + " us";
  if (seconds < 1) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds) + " s";
}

std::string bytes_text(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1024.0 * 1024) return three_digits(bytes / 1024) + " KiB";
  if (bytes < 1024.0 * 1024 * 1024) return three_digits(bytes / (1024.0 * 1024)) + " MiB";
  return three_digits(bytes / (1024.0 * 1024 * 1024)) + " GiB";
}

std::string rate_text(double flops_per_second) {
  if (flops_per_second < 1e12) return three_digits(flops_per_second * 1e-9) + " GFLOP/s";
  return three_digits(flops_per_second * 1e-12) + " TFLOP/s";
}

std::string table_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    if (row.size() > widths.size()) widths.resize(row.size());
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) line += fmt::format("  {:<{}}", row[column], widths[column]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace tessera::cli
