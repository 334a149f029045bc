#include "data/files/npy.h"

#include <charconv>

#include "data/files/little_endian.h"
#include "runtime/base/numbers.h"

namespace millrace {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kLongestHeader = 1 << 16;  // a header describes one array; a longer one is damaged

/// Reads a Python literal such as {'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool string(std::string& value) {
    skip_space();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return false;
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return false;
    value = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return true;
  }
  bool boolean(bool& value) {
    skip_space();
    for (const auto& [word, meaning] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      value = meaning;
      return true;
    }
    return false;
  }
  bool integer(std::int64_t& value) {
    skip_space();
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc{}) return false;
    at_ = static_cast<std::size_t>(end - text_.data());
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 wrote an L behind long integers
    return true;
  }
  bool at_end() {
    skip_space();
    return at_ >= text_.size();
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  std::string_view text_;
  std::size_t at_ = 0;
};

bool read_shape(LiteralReader& in, std::vector<std::int64_t>& shape) {
  if (!in.take('(')) return false;
  while (!in.take(')')) {
    std::int64_t side = 0;
    if (!in.integer(side) || side < 0 || shape.size() == 64) return false;
    shape.push_back(side);
    if (!in.take(',')) return in.take(')');
  }
  return true;
}

/// Reads the literal into `header`. Returns an error text; empty: no error.
std::string read_dictionary(std::string_view text, NpyHeader& header) {
  LiteralReader in(text);
  bool has_descr = false, has_order = false, has_shape = false;
  if (!in.take('{')) return "its header is no dictionary";
  while (!in.take('}')) {
    std::string key;
    if (!in.string(key) || !in.take(':')) return "its header is no dictionary";
    bool* const seen = key == "descr"           ? &has_descr
                       : key == "fortran_order" ? &has_order
                       : key == "shape"         ? &has_shape
                                                : nullptr;
    if (!seen || *seen) return "its header has an unexpected key '" + key.substr(0, 40) + "'";
    *seen = true;
    const bool good = key == "descr"           ? in.string(header.descr)
                      : key == "fortran_order" ? in.boolean(header.fortran_order)
                                               : read_shape(in, header.shape);
    if (!good) return "'" + key + "' in its header is not understood (structured types are not read)";
    if (!in.take(',') && !in.take('}'))
      return "its header is no dictionary";
    else if (in.at_end())
      break;
  }
  if (!in.at_end()) return "its header goes on after the dictionary";
  if (!has_descr || !has_order || !has_shape) return "its header lacks descr, fortran_order or shape";
  return {};
}

/// Returns the bytes of an element, or 0 if it is no number of fixed size.
std::int64_t bytes_of(std::string_view descr) {
  if (descr.size() != 3 && descr.size() != 4) return 0;
  if (std::string_view("<>|=").find(descr[0]) == std::string_view::npos) return 0;
  if (std::string_view("biufc").find(descr[1]) == std::string_view::npos) return 0;
  const int bytes = number_of<int>(descr.substr(2)).value_or(0);
  return bytes >= 1 && bytes <= 32 ? bytes : 0;
}

}  // namespace

Result<NpyHeader> parse_npy_header(std::string_view bytes, const std::string& name) {
  const auto wrong = [&](std::string what) {
    return Problem{name, "is no NPY array: " + what, "give a file that numpy.save wrote"};
  };
  if (bytes.size() < 10 || bytes.substr(0, 6) != kMagic) return wrong("the first bytes are not \\x93NUMPY");
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3) return wrong("version " + std::to_string(version) + " is unknown");
  const std::size_t start = version == 1 ? 10 : 12;
  if (bytes.size() < start) return wrong("it ends inside its header");
  const std::size_t length =
      version == 1 ? get_little<std::uint16_t>(bytes, 8) : get_little<std::uint32_t>(bytes, 8);
  if (length > kLongestHeader) return wrong("its header has " + std::to_string(length) + " bytes");
  if (bytes.size() < start + length) return wrong("it ends inside its header");
  NpyHeader header;
  if (const std::string what = read_dictionary(bytes.substr(start, length), header); !what.empty())
    return wrong(what);
  header.element_bytes = bytes_of(header.descr);
  if (header.element_bytes == 0)
    return wrong("type '" + header.descr.substr(0, 40) + "' is no number of fixed size");
  header.data_offset = start + length;
  std::int64_t total = header.element_bytes;
  bool empty = false;
  for (const std::int64_t side : header.shape) {
    empty = empty || side == 0;
    if (side > 0 && __builtin_mul_overflow(total, side, &total)) return wrong("its shape overflows");
  }
  if (total > (std::int64_t{1} << 62)) return wrong("its shape overflows");
  header.data_bytes = empty ? 0 : total;
  return header;
}

Result<NpyHeader> parse_npy(std::string_view bytes, const std::string& name) {
  Result<NpyHeader> header = parse_npy_header(bytes, name);
  if (!header) return header;
  const Bytes have = static_cast<Bytes>(bytes.size() - header->data_offset);
  if (have != header->data_bytes)
    return Problem{name,
                   "holds " + std::to_string(have) + " bytes of data, its header says " +
                       std::to_string(header->data_bytes),
                   "the file is damaged: generate it again"};
  return header;
}

std::string npy_header(std::string_view descr, const std::vector<std::int64_t>& shape) {
  std::string text = "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  text += shape.size() == 1 ? ",), }" : "), }";
  const std::size_t unpadded = 10 + text.size() + 1;
  text.append((64 - unpadded % 64) % 64, ' ');
  text += '\n';
  std::string header(kMagic);
  header += std::string("\x01\x00", 2);
  put_little(header, static_cast<std::uint16_t>(text.size()));
  return header + text;
}

}  // namespace millrace
