// Numbers as people read them: "1.23 ms", "4.0 GiB", "139 GFLOP/s", and a table with aligned columns.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

std::string seconds_text(double seconds);
std::string bytes_text(double bytes);
std::string rate_text(double flops_per_second);

// Rows of cells, each column as wide as its widest cell; the first row is the heading.
std::string table_text(const std::vector<std::vector<std::string>>& rows);

}  // namespace tessera::cli
