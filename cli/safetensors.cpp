// Reads and writes .safetensors headers by nlohmann-json, with a callback that sees names given twice.
#include "cli/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/failure.hpp"
#include "cli/json_text.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxHeader = 100'000'000;  // the reference implementation's limit
constexpr size_t kLengthBytes = 8;

// The header as JSON. A repeated key at any depth is bad input, which a JSON library alone would hide.
Json parse_header(std::string_view text, std::string_view label) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      bad_input("{}: .safetensors header names {} twice", label, json_text(value));
    return true;
  };
  if (text.empty() || text.front() != '{') bad_input("{}: .safetensors header does not begin with '{{'", label);
  try {
    return Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    bad_input("{}: .safetensors header is not JSON (byte {})", label, error.byte);
  } catch (const Json::out_of_range&) {  // the parser's word for a number that no double holds
    bad_input("{}: .safetensors header holds a number too large for a double", label);
  }
}

// A JSON number that is an unsigned integer below 2^63.
bool read_size(const Json& value, int64_t* size) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
  *size = value.get<int64_t>();
  return true;
}

struct Entry {
  TensorView tensor;
  int64_t begin, end;
};

Entry read_entry(const std::string& name, const Json& value, std::string_view label) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets"))
    bad_input("{}: tensor {} is not {{dtype, shape, data_offsets}}", label, quoted_name(name));
  Entry entry;
  entry.tensor.name = name;
  if (!value["dtype"].is_string() || element_bytes(value["dtype"].get<std::string>()) == 0)
    bad_input("{}: tensor {} has dtype {}, expected F64, F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL or I/U8 to 64", label,
              quoted_name(name), json_text(value["dtype"]));
  entry.tensor.dtype = value["dtype"].get<std::string>();
  if (!value["shape"].is_array()) bad_input("{}: tensor {}: shape is not a list", label, quoted_name(name));
  for (const Json& extent : value["shape"]) {
    int64_t size = 0;
    if (!read_size(extent, &size))
      bad_input("{}: tensor {}: extent {} in shape, expected an integer from 0 to 2^63 - 1", label, quoted_name(name),
                json_text(extent));
    entry.tensor.shape.push_back(size);
  }
  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !read_size(offsets[0], &entry.begin) ||
      !read_size(offsets[1], &entry.end) || entry.begin > entry.end)
    bad_input("{}: tensor {}: data_offsets {}, expected [begin, end]", label, quoted_name(name), json_text(offsets));
  if (!checked_bytes(entry.tensor.shape, element_bytes(entry.tensor.dtype), &entry.tensor.bytes))
    bad_input("{}: tensor {}: shape {} needs 2^63 bytes or more", label, quoted_name(name),
              shape_text(entry.tensor.shape));
  if (static_cast<uint64_t>(entry.end - entry.begin) != entry.tensor.bytes)
    bad_input("{}: tensor {}: {} {} needs {} bytes, data_offsets span {}", label, quoted_name(name), entry.tensor.dtype,
              shape_text(entry.tensor.shape), entry.tensor.bytes, entry.end - entry.begin);
  return entry;
}

void check_metadata(const Json& value, std::string_view label) {
  const bool strings =
      value.is_object() && std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
  if (!strings) bad_input("{}: __metadata__ is not a map of strings", label);
}

uint64_t header_bytes_of(std::span<const std::byte> file) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, file.data(), kLengthBytes);
  return bytes;
}

// The tensors of a complete header, in its order. `file` holds header and length.
std::vector<Entry> read_entries(std::span<const std::byte> file, std::string_view label) {
  const Json header =
      parse_header({reinterpret_cast<const char*>(file.data()) + kLengthBytes, header_bytes_of(file)}, label);
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      check_metadata(value, label);
    } else {
      entries.push_back(read_entry(name, value, label));
    }
  }
  return entries;
}

}  // namespace

std::optional<size_t> safetensors_size(std::span<const std::byte> begin, std::string_view label) {
  if (begin.size() < kLengthBytes) return std::nullopt;
  const uint64_t header_bytes = header_bytes_of(begin);
  if (header_bytes > kMaxHeader)
    bad_input("{}: .safetensors header of {} bytes, expected at most {}", label, header_bytes, kMaxHeader);
  if (begin.size() - kLengthBytes < header_bytes) return std::nullopt;
  int64_t end = 0;
  for (const Entry& entry : read_entries(begin, label)) end = std::max(end, entry.end);
  return kLengthBytes + header_bytes + static_cast<size_t>(end);
}

std::vector<TensorView> read_safetensors(std::span<const std::byte> file, std::string_view label) {
  if (file.size() < kLengthBytes) bad_input("{}: not a .safetensors file ({} bytes)", label, file.size());
  const uint64_t header_bytes = header_bytes_of(file);
  if (header_bytes > kMaxHeader || header_bytes > file.size() - kLengthBytes)
    bad_input("{}: .safetensors header of {} bytes, but the file has {} (and the limit is {})", label, header_bytes,
              file.size(), kMaxHeader);
  const std::byte* data = file.data() + kLengthBytes + header_bytes;
  const int64_t data_bytes = static_cast<int64_t>(file.size() - kLengthBytes - header_bytes);
  std::vector<Entry> entries = read_entries(file, label);
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::vector<TensorView> tensors;
  int64_t position = 0;
  for (Entry& entry : entries) {
    if (entry.begin != position)
      bad_input("{}: tensor {} begins at byte {}, expected {} (tensors must neither overlap nor leave holes)", label,
                quoted_name(entry.tensor.name), entry.begin, position);
    if (entry.end > data_bytes)
      bad_input("{}: tensor {} ends at byte {}, but the file has {} bytes of data", label,
                quoted_name(entry.tensor.name), entry.end, data_bytes);
    position = entry.end;
    entry.tensor.data = data + entry.begin;
    tensors.push_back(std::move(entry.tensor));
  }
  if (position != data_bytes)
    bad_input("{}: {} bytes of data, but the tensors end at byte {}", label, data_bytes, position);
  return tensors;
}

std::string safetensors_header(const std::vector<TensorView>& tensors) {
  Json header = Json::object();
  size_t offset = 0;
  for (const TensorView& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = json_text(header);
  text.append((64 - (kLengthBytes + text.size()) % 64) % 64, ' ');
  const uint64_t length = text.size();
  std::string result(kLengthBytes, '\0');
  std::memcpy(result.data(), &length, kLengthBytes);
  return result + text;
}

}  // namespace tessera::cli
