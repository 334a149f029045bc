#include "data/text/unicode.h"

#include <utf8proc.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

bool is_ascii(std::string_view text) {
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) return false;
  }
  for (; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) >= 0x80) return false;
  }
  return true;
}

}  // namespace

std::size_t first_invalid_utf8(std::string_view text) {
  if (is_ascii(text)) return std::string_view::npos;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

char32_t next_code_point(std::string_view text, std::size_t& i) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char first = byte(i);
  if (first < 0x80) return text[i++];
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t c = first & (0x7F >> length);
  for (std::size_t k = 1; k < length; ++k) c = c << 6 | (byte(i + k) & 0x3F);
  i += length;
  return c;
}

void append_utf8(std::string& text, char32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
    return;
  }
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CO;
}

bool is_nonspacing_mark(char32_t c) {
  return c >= 0x300 && utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_MN;
}

std::string lower_case(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c < 0x80) {
      lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    } else if (c == 0x130) {
      lower += "i\xCC\x87";  // the one letter that becomes two
    } else {
      append_utf8(lower, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return lower;
}

std::string normal_form(std::string_view text, NormalForm form) {
  if (form == NormalForm::None || is_ascii(text)) return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::Nfd ? UTF8PROC_DECOMPOSE : UTF8PROC_COMPOSE;
  if (form == NormalForm::Nfkc) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &made,
                                               static_cast<utf8proc_option_t>(options));
  MILLRACE_CHECK(length >= 0, utf8proc_errmsg(length));
  std::string result(reinterpret_cast<const char*>(made), static_cast<std::size_t>(length));
  std::free(made);  // utf8proc's allocator is malloc
  return result;
}

std::string single_spaced(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool space = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    if (is_white_space(next_code_point(text, i))) {
      space = true;
      continue;
    }
    if (space && !result.empty()) result += ' ';
    space = false;
    result.append(text.substr(begin, i - begin));
  }
  return result;
}

}  // namespace millrace
