// JSON that holds what users typed, which need not be UTF-8: such bytes become U+FFFD, and the text is ASCII.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::cli {

// On one line, or indented by `indent` spaces.
inline std::string json_text(const nlohmann::ordered_json& json, int indent = -1) {
  return json.dump(indent, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

// A name out of a file, in quotes and on one line whatever it holds.
inline std::string quoted_name(const std::string& name) { return json_text(nlohmann::ordered_json(name)); }

}  // namespace tessera::cli
