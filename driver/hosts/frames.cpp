#include "driver/hosts/frames.h"

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr std::size_t kHeader = 5;  // length of the payload, type
constexpr std::size_t kMostNoise = 64 << 10;
constexpr std::string_view kTypes = "JFGSLTZHNR!oeXCAKQPED";

void append_number(std::string& to, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) to += static_cast<char>(number >> shift & 0xff);
}

std::uint32_t number_at(std::string_view bytes) {
  std::uint32_t number = 0;
  for (int i = 0; i < 4; ++i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

[[noreturn]] void throw_strange(const std::string& what) {
  throw PeerError("the other side of the connection sent " + what,
                  "are both programs the same version of millrace?");
}

}  // namespace

std::string to_bytes(FrameType type, std::string_view payload) {
  std::string bytes;
  bytes.reserve(kHeader + payload.size());
  append_number(bytes, static_cast<std::uint32_t>(payload.size()));
  bytes += static_cast<char>(type);
  bytes += payload;
  return bytes;
}

std::string with_rank(int rank, std::string_view bytes) {
  std::string payload;
  append_number(payload, static_cast<std::uint32_t>(rank));
  payload += bytes;
  return payload;
}

std::string with_path(const std::string& path, std::string_view bytes) {
  std::string payload;
  payload.reserve(path.size() + 1 + bytes.size());
  payload += path;
  payload += '\0';
  payload += bytes;
  return payload;
}

std::optional<Frame> FrameReader::next() {
  if (!greeting_.empty()) {
    const std::size_t found = buffer_.find(greeting_);
    if (found == std::string::npos) {
      if (buffer_.size() > kMostNoise) throw_strange("64 KiB of text that is no agent's");
      noise_ = buffer_;
      return std::nullopt;
    }
    noise_ = buffer_.substr(0, found);
    buffer_.erase(0, found + greeting_.size());
    greeting_.clear();
  }
  const std::string_view rest = std::string_view(buffer_).substr(at_);
  if (rest.size() < kHeader) return std::nullopt;
  const std::uint32_t length = number_at(rest);
  const char type = rest[4];
  if (kTypes.find(type) == std::string_view::npos) throw_strange("a frame of an unknown kind");
  if (length > kLongestFrame) throw_strange("a frame of " + std::to_string(length) + " bytes");
  if (rest.size() - kHeader < length) {
    buffer_.erase(0, at_);
    at_ = 0;
    return std::nullopt;
  }
  Frame frame{static_cast<FrameType>(type), std::string(rest.substr(kHeader, length))};
  at_ += kHeader + length;
  if (at_ == buffer_.size()) {
    buffer_.clear();
    at_ = 0;
  }
  return frame;
}

int take_rank(std::string_view& payload) {
  if (payload.size() < 4) throw_strange("a frame that is too short");
  const std::uint32_t rank = number_at(payload);
  payload.remove_prefix(4);
  return static_cast<int>(rank);
}

std::string take_path(std::string_view& payload) {
  const std::size_t end = payload.find('\0');
  if (end == std::string_view::npos) throw_strange("a file without a name");
  std::string path(payload.substr(0, end));
  payload.remove_prefix(end + 1);
  return path;
}

}  // namespace millrace
