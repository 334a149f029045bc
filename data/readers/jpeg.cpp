#include "data/readers/jpeg.h"

#include <turbojpeg.h>

#include <cstring>
#include <memory>

namespace millrace {
namespace {

struct Destroy {
  void operator()(void* handle) const { tjDestroy(handle); }
};

/// Converts Adobe's inverted CMYK to RGB.
void cmyk_to_rgb(const std::vector<std::uint8_t>& cmyk, std::vector<std::uint8_t>& rgb) {
  for (std::size_t i = 0, o = 0; i + 3 < cmyk.size(); i += 4) {
    const int k = cmyk[i + 3];
    for (int c = 0; c < 3; ++c)
      rgb[o++] = static_cast<std::uint8_t>(cmyk[i + static_cast<std::size_t>(c)] * k / 255);
  }
}

/// Returns an error text if the header exceeds the limits, else an empty one.
std::string beyond(const JpegLimits& limits, int width, int height, int scans) {
  const std::string size = std::to_string(width) + "x" + std::to_string(height) + " pixels";
  const std::int64_t pixels = std::int64_t{width} * height;
  if (pixels > limits.pixels)
    return size + " are more than " + std::to_string(limits.pixels >> 20) + " megapixels";
  if (scans > limits.scans)
    return std::to_string(scans) + " scans are more than " + std::to_string(limits.scans);
  if (pixels * scans > limits.scan_pixels)
    return size + " in " + std::to_string(scans) + " scans are too many";
  return "";
}

}  // namespace

int count_scans(const std::string& bytes) {
  constexpr unsigned char kStartOfImage = 0xd8, kEndOfImage = 0xd9, kStartOfScan = 0xda, kTemporary = 0x01;
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(bytes[at]); };
  int scans = 0;
  for (std::size_t at = 0; at + 1 < bytes.size();) {
    // Entropy-coded data holds 0xff only before a zero or a restart marker.
    const void* found = std::memchr(bytes.data() + at, 0xff, bytes.size() - at - 1);
    if (!found) break;
    at = static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data()) + 1;
    const unsigned char marker = byte(at);
    if (marker == 0xff) continue;  // a fill byte
    ++at;
    const bool restart = marker >= 0xd0 && marker <= 0xd7;
    if (marker == 0 || marker == kTemporary || marker == kStartOfImage || restart) continue;
    if (marker == kEndOfImage) break;
    scans += marker == kStartOfScan;
    if (at + 1 >= bytes.size()) break;
    at += static_cast<std::size_t>(byte(at) << 8 | byte(at + 1));
  }
  return scans;
}

bool decode_jpeg(const std::string& bytes, RgbImage& image, std::string& error, const JpegLimits& limits) {
  // A reused handle would keep tables of the image before, and its error state after a damaged one. A new
  // handle costs 0.2 us; decoding an image of 32x32 pixels costs 15 us.
  const std::unique_ptr<void, Destroy> handle(tjInitDecompress());
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto fail = [&] {
    error = handle ? tjGetErrorStr2(handle.get()) : "no memory for a decoder";
    return false;
  };
  int width = 0, height = 0, subsampling = 0, colour = 0;
  if (!handle ||
      tjDecompressHeader3(handle.get(), data, bytes.size(), &width, &height, &subsampling, &colour) != 0)
    return fail();
  if (error = beyond(limits, width, height, count_scans(bytes)); !error.empty()) return false;
  const bool cmyk = colour == TJCS_CMYK || colour == TJCS_YCCK;
  image = {.width = width,
           .height = height,
           .kind = cmyk                  ? JpegKind::Cmyk
                   : colour == TJCS_GRAY ? JpegKind::Grey
                                         : JpegKind::Rgb};
  const std::size_t pixels = static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  image.pixels.resize(pixels * 3);
  std::vector<std::uint8_t> raw;
  if (cmyk) raw.resize(pixels * 4);
  // A warning (premature end, corrupt data) counts as damage too and ends the decoding.
  constexpr int kFlags = TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS;
  if (tjDecompress2(handle.get(), data, bytes.size(), cmyk ? raw.data() : image.pixels.data(), width, 0,
                    height, cmyk ? TJPF_CMYK : TJPF_RGB, kFlags) != 0)
    return fail();
  if (cmyk) cmyk_to_rgb(raw, image.pixels);
  return true;
}

}  // namespace millrace
