// Reads the header of a .npy file: a Python dict literal of exactly three keys, parsed by a cursor that never leaves
// it.
#include "cli/npy.hpp"

#include <bit>
#include <cstring>

#include "cli/failure.hpp"

namespace tessera::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read and written without byte swaps");

constexpr std::string_view kMagic = "\x93NUMPY";

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// The dict literal {'descr': '<f4', 'fortran_order': False, 'shape': (1, 64, 9, 64), }.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view label) : text_(text), label_(label) {}

  Header parse() {
    Header header;
    int seen = 0;
    expect('{');
    while (!accept('}')) {
      const std::string key = string_literal();
      expect(':');
      seen = mark(seen, key);
      if (key == "descr") {
        header.descr = descr();
      } else if (key == "fortran_order") {
        header.fortran_order = boolean();
      } else {
        header.shape = tuple();
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (position_ != text_.size()) wrong("nothing after the closing brace");
    if (seen != 7) bad_input("{}: .npy header lacks a key, expected descr, fortran_order and shape", label_);
    return header;
  }

 private:
  [[noreturn]] void wrong(std::string_view expected) const {
    bad_input("{}: malformed .npy header at byte {}, expected {}", label_, position_, expected);
  }
  int mark(int seen, std::string_view key) const {
    const int bit = key == "descr" ? 1 : key == "fortran_order" ? 2 : key == "shape" ? 4 : 0;
    if (bit == 0 || (seen & bit) != 0) wrong("each of the keys descr, fortran_order and shape once");
    return seen | bit;
  }
  void skip_space() {
    while (position_ < text_.size() && std::strchr(" \t\r\n", text_[position_]) != nullptr && text_[position_] != '\0')
      ++position_;
  }
  bool accept(char wanted) {
    skip_space();
    if (position_ >= text_.size() || text_[position_] != wanted) return false;
    ++position_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) wrong(fmt::format("'{}'", wanted));
  }
  std::string string_literal() {
    const char quote = accept('\'') ? '\'' : accept('"') ? '"' : '\0';
    if (quote == '\0') wrong("a quoted string");
    const size_t end = text_.find(quote, position_);
    if (end == std::string_view::npos) wrong("a closing quote");
    std::string value(text_.substr(position_, end - position_));
    for (const char c : value)
      if (c < ' ' || c > '~') wrong("printable characters in a string");
    position_ = end + 1;
    return value;
  }
  std::string descr() {
    skip_space();
    if (position_ < text_.size() && text_[position_] == '[')
      bad_input("{}: structured .npy array, expected dtype <f2, <f4 or <f8", label_);
    return string_literal();
  }
  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(position_, word.size()) == word) {
        position_ += word.size();
        return value;
      }
    }
    wrong("True or False");
  }
  int64_t integer() {
    skip_space();
    const size_t begin = position_;
    int64_t value = 0;
    for (; position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9'; ++position_) {
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, int64_t{text_[position_] - '0'}, &value))
        bad_input("{}: .npy shape has an extent of 2^63 or more", label_);
    }
    if (position_ == begin) wrong("a non-negative integer in shape");
    if (position_ < text_.size() && text_[position_] == 'L') ++position_;  // Python 2 wrote 64L
    return value;
  }
  std::vector<int64_t> tuple() {
    constexpr size_t kMaxRank = 32;  // NumPy's own limit until version 2
    std::vector<int64_t> shape;
    expect('(');
    while (!accept(')')) {
      if (shape.size() == kMaxRank) wrong("at most 32 dimensions");
      shape.push_back(integer());
      if (!accept(',')) {
        if (shape.size() == 1) wrong("',' in a tuple of one");
        expect(')');
        break;
      }
    }
    return shape;
  }

  std::string_view text_, label_;
  size_t position_ = 0;
};

std::string npy_dtype(const std::string& descr, std::string_view label) {
  if (descr == "<f2") return "F16";
  if (descr == "<f4") return "F32";
  if (descr == "<f8") return "F64";
  const std::string_view kind = std::string_view(descr).substr(descr.empty() ? 0 : 1, 1);
  const char* what = "unsupported";
  if (kind == "O") what = "pickled object array,";
  if (kind == "c") what = "complex";
  if (kind == "f" && descr[0] == '>') what = "big-endian";
  if (kind == "V") what = "raw bytes (bfloat16 goes into .safetensors),";
  bad_input("{}: {} dtype '{}', expected '<f2', '<f4' or '<f8'", label, what, descr);
}

constexpr size_t kPrefix = 8;  // magic, major, minor

// Bytes of the field that holds the header's length. `file` has kPrefix bytes or is not a .npy file.
size_t length_bytes_of(std::span<const std::byte> file, std::string_view label) {
  if (file.size() < kPrefix || std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0)
    bad_input("{}: not a .npy file ({} bytes), expected the magic \\x93NUMPY", label, file.size());
  const int major = static_cast<int>(file[6]), minor = static_cast<int>(file[7]);
  if (major < 1 || major > 3 || minor != 0)
    bad_input("{}: .npy version {}.{}, expected 1.0, 2.0 or 3.0", label, major, minor);
  return major == 1 ? 2 : 4;
}

size_t header_bytes_of(std::span<const std::byte> file, size_t length_bytes) {
  size_t bytes = 0;
  for (size_t i = 0; i < length_bytes; ++i) bytes |= static_cast<size_t>(file[kPrefix + i]) << (8 * i);
  return bytes;
}

// The array that a complete header in [begin, end) of `file` describes, without its data.
TensorView described(std::span<const std::byte> file, size_t begin, size_t end, std::string_view label) {
  const Header header = HeaderParser({reinterpret_cast<const char*>(file.data()) + begin, end - begin}, label).parse();
  TensorView tensor;
  tensor.dtype = npy_dtype(header.descr, label);
  tensor.shape = header.shape;
  if (header.fortran_order && header.shape.size() > 1)
    bad_input("{}: Fortran order, expected C order (numpy.ascontiguousarray before numpy.save)", label);
  if (!checked_bytes(tensor.shape, element_bytes(tensor.dtype), &tensor.bytes))
    bad_input("{}: .npy shape {} needs 2^63 bytes or more", label, shape_text(tensor.shape));
  return tensor;
}

}  // namespace

TensorView read_npy(std::span<const std::byte> file, std::string_view label) {
  const size_t text_begin = kPrefix + length_bytes_of(file, label);
  if (file.size() < text_begin) bad_input("{}: truncated .npy header", label);
  const size_t header_bytes = header_bytes_of(file, text_begin - kPrefix), data_begin = text_begin + header_bytes;
  if (data_begin > file.size())
    bad_input("{}: .npy header of {} bytes, but the file has {}", label, header_bytes, file.size());
  TensorView tensor = described(file, text_begin, data_begin, label);
  if (file.size() - data_begin != tensor.bytes)
    bad_input("{}: .npy shape {} needs {} bytes of data, the file has {}", label, shape_text(tensor.shape),
              tensor.bytes, file.size() - data_begin);
  tensor.data = file.data() + data_begin;
  return tensor;
}

std::optional<size_t> npy_size(std::span<const std::byte> begin, std::string_view label) {
  constexpr size_t kMaxHeader = 1 << 20;  // three keys and at most 32 extents need less than 1 KiB
  if (begin.size() < kPrefix) return std::nullopt;
  const size_t text_begin = kPrefix + length_bytes_of(begin, label);
  if (begin.size() < text_begin) return std::nullopt;
  const size_t header_bytes = header_bytes_of(begin, text_begin - kPrefix);
  if (header_bytes > kMaxHeader)
    bad_input("{}: .npy header of {} bytes, expected at most {} in a pipe", label, header_bytes, kMaxHeader);
  if (begin.size() < text_begin + header_bytes) return std::nullopt;
  return text_begin + header_bytes + described(begin, text_begin, text_begin + header_bytes, label).bytes;
}

std::string npy_header(std::string_view dtype, const std::vector<int64_t>& shape) {
  std::string extents;
  for (const int64_t extent : shape) extents += fmt::format("{}, ", extent);
  if (shape.size() > 1) extents.resize(extents.size() - 2);
  if (shape.size() == 1) extents.resize(extents.size() - 1);
  std::string text =
      fmt::format("{{'descr': '<f{}', 'fortran_order': False, 'shape': ({}), }}", element_bytes(dtype), extents);
  constexpr size_t kFixed = 10, kAlign = 64;  // magic, version and length; NumPy aligns the data to 64 bytes
  const size_t total = (kFixed + text.size() + 1 + kAlign - 1) / kAlign * kAlign;
  text.append(total - kFixed - text.size() - 1, ' ').push_back('\n');
  std::string header(kMagic);
  header += {'\x01', '\x00', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace tessera::cli
